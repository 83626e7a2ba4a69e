"""Quick passwords: what is tested here is not how slow guessing is made by hashing."""

import pytest


@pytest.fixture(autouse=True)
def _quick_passwords(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
