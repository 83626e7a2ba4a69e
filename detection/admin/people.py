"""Accounts and groups with the theme of the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group
from django.utils.safestring import mark_safe

from detection.admin.base import BaseAdmin

User = get_user_model()
admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(PlainUserAdmin, BaseAdmin):  # type: ignore[type-arg]
    """Accounts."""

    show_full_result_count = False
    try:
        from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
    except ImportError:
        pass
    else:

        class AccountForm(UserChangeForm):
            """The theme's form, with the link in its help text underlined."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                password = self.fields.get("password")
                if password is not None:
                    password.help_text = mark_safe(password.help_text.replace('class="', 'class="underline '))  # noqa: S308

        form, add_form, change_password_form = AccountForm, UserCreationForm, AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, BaseAdmin):
    """Groups of permissions."""
