"""Accounts and groups in the same look as the rest."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group

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
        form, add_form, change_password_form = UserChangeForm, UserCreationForm, AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, BaseAdmin):
    """Groups of permissions."""
