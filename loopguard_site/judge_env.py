"""Environment variables of the judge: one endpoint, its model, keys and prices. Without an endpoint it is disabled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Literal
from urllib.parse import urlsplit

from loopguard_site.env import EnvironmentProblem, split_address


@dataclass(frozen=True, slots=True)
class JudgeEndpoint:
    """The only endpoint that receives judge requests.

    Attributes
    ----------
    url
        Base URL of an OpenAI-compatible API; ``/chat/completions`` is added.
    key, keys
        The credential, and credentials of single projects by slug.
    daily_cost_usd
        Amount that one project may spend per day (UTC).
    input_usd, output_usd
        Prices per million tokens.
    quotes_arguments
        Whether the judge gets shortened, fenced argument texts besides figures.
    answers
        ``json`` for endpoints that follow a schema, ``words`` for the others.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    daily_cost_usd: Decimal = Decimal(1)
    input_usd: Decimal = Decimal(3)
    output_usd: Decimal = Decimal(15)
    quotes_arguments: bool = False
    answers: Literal["json", "words"] = "json"

    @property
    def host(self) -> str:
        """Host and port, as shown beside each stored call."""
        return urlsplit(self.url).netloc

    def key_for(self, project_slug: str) -> str:
        """Return the credential for a project: its own, else the general one."""
        return self.keys.get(project_slug, self.key)

    def cost(self, input_tokens: int, output_tokens: int) -> Decimal:
        """Return the price of one judge call in US dollars."""
        return (self.input_usd * input_tokens + self.output_usd * output_tokens) / 1_000_000


def read(env: Mapping[str, str]) -> JudgeEndpoint | None:
    """Read ``LOOPGUARD_JUDGE_*``; None without an endpoint.

    Raises
    ------
    EnvironmentProblem
        When a variable is missing or wrong.
    """
    url = env.get("LOOPGUARD_JUDGE_URL", "").strip().rstrip("/")
    if not url:
        return None
    parts = split_address(url)
    is_http = parts is not None and parts.scheme in ("http", "https")
    if parts is None or not is_http or not parts.hostname or parts.username or parts.query:
        raise EnvironmentProblem(
            f"LOOPGUARD_JUDGE_URL must be an http or https address without a login, not {url!r}."
        )
    allowed = {item.strip().rstrip("/") for item in env.get("LOOPGUARD_JUDGE_ALLOWED_URLS", url).split(",")}
    if url not in allowed:
        raise EnvironmentProblem("LOOPGUARD_JUDGE_URL is not one of LOOPGUARD_JUDGE_ALLOWED_URLS.")
    model = env.get("LOOPGUARD_JUDGE_MODEL", "").strip()
    if not model:
        raise EnvironmentProblem("LOOPGUARD_JUDGE_MODEL must name the model when LOOPGUARD_JUDGE_URL is set.")
    answers = env.get("LOOPGUARD_JUDGE_ANSWERS", "").strip() or "json"
    if answers not in ("json", "words"):
        raise EnvironmentProblem(f"LOOPGUARD_JUDGE_ANSWERS must be json or words, not {answers!r}.")
    pairs = [item.partition("=") for item in env.get("LOOPGUARD_JUDGE_KEYS", "").split(",") if "=" in item]
    return JudgeEndpoint(
        url=url,
        model=model,
        key=env.get("LOOPGUARD_JUDGE_KEY", "").strip(),
        keys={slug.strip(): key.strip() for slug, _, key in pairs},
        daily_cost_usd=_amount(env, "LOOPGUARD_JUDGE_DAILY_COST_USD", "1"),
        input_usd=_amount(env, "LOOPGUARD_JUDGE_INPUT_USD_PER_MILLION", "3"),
        output_usd=_amount(env, "LOOPGUARD_JUDGE_OUTPUT_USD_PER_MILLION", "15"),
        quotes_arguments=env.get("LOOPGUARD_JUDGE_QUOTES_ARGUMENTS", "").lower() in ("1", "true", "yes"),
        answers="words" if answers == "words" else "json",
    )


def _amount(env: Mapping[str, str], name: str, default: str) -> Decimal:
    try:
        amount = Decimal(env.get(name, default))
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0:
        raise EnvironmentProblem(f"{name} must be an amount in US dollars, 0 or more.")
    return amount
