"""Schemas of the gateway's backends and tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.alerts import Name80
from detection.api.schemas.common import ShortText, StrictSchema
from detection.selectors.gateway import gateway_url
from detection.selectors.row_fields import PUBLIC_ID, Shown
from detection.services.gateway.backends import TOKEN_PREFIX, backend_version

BackendName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
BaseUrl = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Kind = Literal["openai", "anthropic", "gemini"]
_BASE_URL = "Address of the model server, under one that the deployment allows."
_CREDENTIAL = (
    "Name of a credential in LOOPGUARD_GATEWAY_CREDENTIALS of the deployment. Empty: the client's own credential "
    "is passed through."
)
_HEADERS = "Headers that every request gets. Do not put credentials here: the values are shown."
_REQUESTS_USAGE = (
    "Whether to request usage for streamed chat completions if the agent does not. The agent does not see it."
)
_FAILS_CLOSED = "Whether tool calls are withheld while LoopGuard cannot evaluate them."


class BackendRequestSchema(StrictSchema):
    """A new backend."""

    name: BackendName = Field(description="Name, part of the address that agents use.")
    kind: Kind = Field("openai", description="API of the model server.")
    base_url: BaseUrl = Field(description=_BASE_URL)
    credential: ShortText = Field("", description=_CREDENTIAL)
    headers: dict[str, str] = Field({}, description=_HEADERS)
    fails_closed: bool = Field(False, description=_FAILS_CLOSED)
    requests_usage: bool = Field(True, description=_REQUESTS_USAGE)
    is_enabled: bool = Field(True, description="Whether agents may use it.")


class BackendUpdateSchema(StrictSchema):
    """Changes to a backend. Missing fields stay as they are."""

    name: BackendName | None = Field(None, description="Name, part of the address that agents use.")
    kind: Kind | None = Field(None, description="API of the model server.")
    base_url: BaseUrl | None = Field(None, description=_BASE_URL)
    credential: ShortText | None = Field(None, description=_CREDENTIAL)
    headers: dict[str, str] | None = Field(None, description=_HEADERS)
    fails_closed: bool | None = Field(None, description=_FAILS_CLOSED)
    requests_usage: bool | None = Field(None, description=_REQUESTS_USAGE)
    is_enabled: bool | None = Field(None, description="Whether agents may use it.")


class BackendSchema(BackendRequestSchema):
    """A stored backend."""

    id: Annotated[str, PUBLIC_ID] = Field(description="Id of the backend.")
    gateway_url: Annotated[str, Shown(show=lambda row: gateway_url(row.name))] = Field(
        description="Base URL for agents, which send a key in the header `LoopGuard-Key`."
    )
    version: Annotated[str, Shown(show=backend_version)] = Field(description="For `If-Match`, in quotes.")


class BackendTestSchema(Schema):
    """The result of a test."""

    is_success: bool = Field(
        description="Whether the backend responds, and accepts its credential if it has one."
    )
    status: int | None = Field(description="HTTP status of the response. Null if there was none.")
    detail: str = Field(description="What happened.")


class GatewayTokenRequestSchema(StrictSchema):
    """A new token."""

    name: Name80 = Field(description="What the token is for.")


class GatewayTokenSchema(Schema):
    """A token, without its secret."""

    id: Annotated[str, Shown(show=lambda row: f"{TOKEN_PREFIX}{row.public_id}")] = Field(
        description="Readable part of the token."
    )
    name: str = Field(description="What the token is for.")
    created_at: datetime = Field(description="When it was created.")
    revoked_at: datetime | None = Field(description="When it was revoked.")


class CreatedGatewayTokenSchema(GatewayTokenSchema):
    """A new token with its secret."""

    token: str = Field(description="The token, shown only here.")
    gateway_url: str = Field(description="Base URL with the token, for agents that send no key.")
