"""The second factor of an account: codes of an authenticator app (TOTP), and recovery codes for when it is lost.

The devices are those of django-otp: a code works once, and one clock step early or late. Of recovery codes only keyed
digests are stored. The caller throttles attempts, as the sign-in does.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction
from django_otp.plugins.otp_static.models import StaticDevice, StaticToken
from django_otp.plugins.otp_totp.models import TOTPDevice

from detection.services import audit
from detection.services.accounts import sign_ins
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid

SESSION_KEY = "second_factor"
"""Key in the session of a browser in which the person has entered a code."""
RECOVERY_CODES = 10
MAX_CODE_CHARACTERS = 40
WRONG_CODE = "The code is wrong, expired or already used. Enter the current one."
_DIGEST_CHARACTERS = 16  # 80 bits, what a token of the library holds
_DIGITS = 6


def is_enabled(user_id: int) -> bool:
    """Return whether signing in to an account needs a code."""
    return bool(TOTPDevice.objects.filter(user_id=user_id, confirmed=True).exists())


def next_step(user_id: int) -> str:
    """Return the instruction for a person who has to enter a code and has not."""
    return "Sign out and in again with a code." if is_enabled(user_id) else "Set it up to continue."


def recovery_codes_left(user_id: int) -> int:
    """Return how many recovery codes have not been used."""
    count: int = StaticToken.objects.filter(device__user_id=user_id).count()
    return count


def pending_device(user_id: int) -> TOTPDevice | None:
    """Return the device that is being set up."""
    device: TOTPDevice | None = TOTPDevice.objects.filter(user_id=user_id, confirmed=False).first()
    return device


def text_key(device: TOTPDevice) -> str:
    """Return the key of a device for typing, in groups of four characters."""
    key = base64.b32encode(device.bin_key).decode().rstrip("=")
    return " ".join(key[start : start + 4] for start in range(0, len(key), 4))


@transaction.atomic
def begin(user: Any) -> TOTPDevice:
    """Create the device to set up, with a new key; an earlier one that was never confirmed is removed.

    Raises
    ------
    Conflict
        ``second_factor_enabled``.
    """
    lock(user)
    if is_enabled(user.pk):
        raise Conflict("The second factor is already enabled.", code="second_factor_enabled")
    TOTPDevice.objects.filter(user=user).delete()
    device: TOTPDevice = TOTPDevice.objects.create(user=user, name="authenticator app", confirmed=False)
    return device


@transaction.atomic
def confirm(user: Any, code: str, actor: Actor, *, keep_session: str = "") -> list[str]:
    """Enable the second factor with the first code of the device, and end the person's other sign-ins.

    Returns
    -------
    list
        The recovery codes, which are not stored and cannot be shown again.

    Raises
    ------
    Invalid
        For a wrong code.
    Conflict
        ``second_factor_not_begun``.
    """
    lock(user)
    device = pending_device(user.pk)
    if device is None:
        raise Conflict("Start with “Set up”.", code="second_factor_not_begun")
    if not _verify_totp(device, code):
        raise Invalid(WRONG_CODE, field="code")
    device.confirmed = True
    device.save(update_fields=["confirmed"])
    codes = _new_codes(user)
    audit.record(actor, "account.second_factor_enable", user.get_username(), project_id=None)
    sign_ins.end_sign_ins(user.pk, actor, except_session=keep_session)
    return codes


@transaction.atomic
def create_recovery_codes(user: Any, actor: Actor) -> list[str]:
    """Replace the recovery codes of an account; the previous ones stop working.

    Raises
    ------
    Conflict
        ``second_factor_disabled``.
    """
    lock(user)
    if not is_enabled(user.pk):
        raise Conflict("The second factor is not enabled.", code="second_factor_disabled")
    codes = _new_codes(user)
    audit.record(actor, "account.recovery_codes", user.get_username(), project_id=None)
    return codes


@transaction.atomic
def verify(user: Any, code: str) -> bool:
    """Return whether a code of the app or a recovery code is right, and use it up."""
    lock(user)
    device = TOTPDevice.objects.filter(user=user, confirmed=True).first()
    if device is None:
        return False
    if _verify_totp(device, code):
        return True
    recovery = StaticDevice.objects.filter(user=user).first()
    used = recovery is not None and recovery.verify_token(_digest(user, code))
    if used:
        audit.record(
            Actor(user.get_username(), user.pk),
            "account.recovery_code_use",
            user.get_username(),
            project_id=None,
            after={"left": recovery_codes_left(user.pk)},
        )
    return used


@transaction.atomic
def disable(user: Any, actor: Actor, *, keep_session: str = "") -> None:
    """Remove the second factor of an account, and end the person's other sign-ins.

    Raises
    ------
    Conflict
        ``second_factor_disabled``.
    """
    lock(user)
    enabled = is_enabled(user.pk)
    TOTPDevice.objects.filter(user=user).delete()
    StaticDevice.objects.filter(user=user).delete()
    if not enabled:
        raise Conflict("The second factor is not enabled.", code="second_factor_disabled")
    audit.record(actor, "account.second_factor_disable", user.get_username(), project_id=None)
    sign_ins.end_sign_ins(user.pk, actor, except_session=keep_session)


def lock(user: Any) -> None:
    """Let one request at a time verify codes of an account, until the end of the transaction: a code works once."""
    get_user_model().objects.select_for_update(no_key=True).get(pk=user.pk)


def _verify_totp(device: TOTPDevice, code: str) -> bool:
    digits = code.replace(" ", "")
    if len(digits) != _DIGITS or not digits.isascii() or not digits.isdecimal():
        return False
    return bool(device.verify_token(digits))


def _new_codes(user: Any) -> list[str]:
    StaticDevice.objects.filter(user=user).delete()
    device = StaticDevice.objects.create(user=user, name="recovery codes")
    codes = [_new_code() for _ in range(RECOVERY_CODES)]
    for code in codes:
        device.token_set.create(token=_digest(user, code))
    return codes


def _new_code() -> str:
    text = base64.b32encode(secrets.token_bytes(10)).decode().lower()
    return "-".join(text[start : start + 4] for start in range(0, len(text), 4))


def _digest(user: Any, code: str) -> str:
    plain = "".join(sign for sign in code[:MAX_CODE_CHARACTERS].lower() if sign.isalnum())
    # Without the secret key, so that the codes outlive it; nobody guesses 80 random bits.
    digest = hashlib.sha256(f"second-factor:{user.pk}:{plain}".encode()).digest()
    return base64.b32encode(digest).decode().lower()[:_DIGEST_CHARACTERS]
