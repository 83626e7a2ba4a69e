"""Accounts and groups with the theme of the admin. Only superusers grant permissions, directly or through groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django_otp.plugins.otp_static.admin
import django_otp.plugins.otp_totp.admin  # noqa: F401 - both register what is removed below
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import mark_safe
from django_otp.plugins.otp_static.models import StaticDevice
from django_otp.plugins.otp_totp.models import TOTPDevice

from detection.admin.base import BaseAdmin, actor_of
from detection.services import audit
from detection.services.accounts import passwords, second_factor, sign_ins
from detection.services.errors import ServiceError

MAX_AT_ONCE = 20
RIGHTS = ("is_superuser", "groups", "user_permissions")

User = get_user_model()
admin.site.unregister(User)
admin.site.unregister(Group)
# Their pages show the keys of devices; people manage their own on the Account page.
admin.site.unregister(TOTPDevice)
admin.site.unregister(StaticDevice)


@admin.register(User)
class UserAdmin(PlainUserAdmin, BaseAdmin):  # type: ignore[type-arg]
    """Accounts, with actions that create password reset links and remove lost second factors."""

    show_full_result_count = False
    actions = ("create_reset_links", "remove_second_factors")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False for an account with more permissions."""
        return super().has_change_permission(request, obj) and not _is_beyond(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False for an account with more permissions."""
        return super().has_delete_permission(request, obj) and not _is_beyond(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the fields that the person must not change: only superusers grant permissions."""
        fields = super().get_readonly_fields(request, obj)
        return fields if _is_superuser(request) else (*fields, *RIGHTS)

    @transaction.atomic
    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        """Show the form for a new password, or set it; the audit entry is written in the same transaction."""
        return super().user_change_password(request, id, form_url)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Audit a change of an account; a new password ends its sign-ins."""
        parts = message if isinstance(message, list) else []
        fields = [name for part in parts for name in part.get("changed", {}).get("fields", ())]
        if fields:
            actor, name = actor_of(request), obj.get_username()
            audit.record(actor, "account.save", name, project_id=None, after={"fields": fields})
        if "password" in fields:  # set on the page of the password: the form of the account has none
            own = request.session.session_key or "" if obj.pk == request.user.pk else ""
            sign_ins.end_sign_ins(obj.pk, actor_of(request), except_session=own)
        return super().log_change(request, obj, message)

    @admin.action(description="Create password reset links", permissions=["change"])
    def create_reset_links(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Show a one-time link for each chosen account."""
        self._carry_out(
            request, queryset, lambda user: f"{user}: {passwords.create_reset_link(user, actor_of(request))}"
        )

    @admin.action(description="Remove the second factor", permissions=["change"])
    def remove_second_factors(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Remove the second factor of each chosen account, whose device is lost."""

        def remove(user: Any) -> str:
            second_factor.disable(user, actor_of(request))
            return f"{user}: second factor removed."

        self._carry_out(request, queryset, remove)

    def _carry_out(self, request: HttpRequest, queryset: QuerySet[Any], change: Callable[[Any], str]) -> None:
        if len(queryset[: MAX_AT_ONCE + 1]) > MAX_AT_ONCE:
            self.message_user(request, f"Choose at most {MAX_AT_ONCE} accounts.", messages.ERROR)
            return
        for user in queryset:
            if _is_beyond(request, user):
                self.message_user(
                    request, f"{user}: this account has more permissions than yours.", messages.ERROR
                )
                continue
            try:
                self.message_user(request, change(user), messages.SUCCESS)
            except ServiceError as error:
                self.message_user(request, f"{user}: {error.detail}", messages.ERROR)

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


def _is_superuser(request: HttpRequest) -> bool:
    return bool(getattr(request.user, "is_superuser", False))


def _is_beyond(request: HttpRequest, obj: Any) -> bool:
    """Return whether an account has permissions that the person lacks and would gain by taking it over."""
    if obj is None or _is_superuser(request):
        return False
    return obj.is_superuser or _rights(obj).exclude(pk__in=_rights(request.user)).exists()


def _rights(user: Any) -> QuerySet[Permission, int]:
    # Also those of a disabled account, which could be enabled.
    return Permission.objects.filter(Q(user=user) | Q(group__user=user)).values_list("pk", flat=True)


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, BaseAdmin):
    """Groups of permissions. Anyone who could change their own group could grant themselves every permission."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the person is a superuser."""
        return _is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the person is a superuser."""
        return _is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the person is a superuser."""
        return _is_superuser(request)
