"""The rules by which secrets are found: one entry for each, with the plain texts that hint at it.

A mark in a stored event names its rule, such as ``[redacted:vault-token:1f0a2b3c4d5e]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import re2

from detection.services.redaction import checked_numbers, named_values, seed_phrases, service_tokens
from detection.services.redaction.named_values import is_secret
from detection.services.redaction.service_tokens import Found

_NO_VARIABLE = r"(?!\$(?:[({]|[A-Z_][A-Z0-9_]*+(?![^\s\"'`@/])))"
"""Before a value that must be neither ``${NAME}`` nor ``$NAME``."""


@dataclass(frozen=True, slots=True)
class SecretRule:
    """One kind of secret, found by a pattern.

    Parameters
    ----------
    name
        Shown in the mark.
    finds
        What it finds, for the documentation.
    pattern
        Runs in linear time on any text. What is replaced is the first of the groups ``secret``, ``double``, ``single``
        and ``plain`` that took part, or else the whole match.
    hint
        The rule runs only on texts in which this is found, in small or capital letters. Hints are sets of RE2, each of
        which passes over a text once.
    checked
        Whether a value that reads like a plain word, a placeholder or an expression is left alone.
    weak
        Whether the value has to look like a secret as well.
    """

    name: str
    finds: str
    pattern: re.Pattern[str]
    hint: str
    checked: bool = False
    weak: bool = False

    def find(self, text: str) -> Iterator[Found]:
        """Yield the secrets in a text."""
        for found in self.pattern.finditer(text):
            groups = self.pattern.groupindex
            group: int | str = next(
                (
                    one
                    for one in ("secret", "double", "single", "plain")
                    if one in groups and found[one] is not None
                ),
                0,
            )
            value = found[group]
            is_quoted = group in ("double", "single")
            if self.checked and not is_secret(value, "weak" if self.weak else "secret", is_quoted=is_quoted):
                continue
            yield *found.span(group), self.name


@dataclass(frozen=True, slots=True)
class SearchRule:
    """One kind of secret, found by a function; the other fields are those of `SecretRule`.

    Parameters
    ----------
    find
        Yields the secrets in a text with the names of their marks, in linear time.
    """

    name: str
    finds: str
    find: Callable[[str], Iterator[Found]]
    hint: str


_BY_FORM: tuple[SecretRule | SearchRule, ...] = (
    SearchRule(
        "service-token",
        f"Tokens and keys that have a form of their own; the mark names the service, as in `github-token`. Services: {', '.join(service_tokens.SERVICES)}",
        service_tokens.find_tokens,
        service_tokens.TOKEN_HINT,
    ),
    SearchRule(
        "service-value",
        "Keys of these services without a form of their own, beside the name of the service; the mark is the same",
        service_tokens.find_beside_names,
        service_tokens.WORD_HINT,
    ),
    SecretRule(
        "password-hash",
        "Hashes of passwords, as in `/etc/shadow` and in tables of users (crypt, bcrypt, scrypt, argon2, PBKDF2, LDAP, SCRAM)",
        re.compile(
            r"(?<![\w$])\$(?:1|2[abxy]|5|6|7|y|gy|md5|sha1|apr1|P|H|argon2(?:id|i|d)|s?crypt|pbkdf2[a-z0-9-]{0,12}|bcrypt-sha256)\$"
            r"(?=[^\s:\"'`]{0,40}[A-Za-z0-9./+]{8})[A-Za-z0-9./=,$+_-]{16,}+"
            r"|\b(?:pbkdf2_sha(?:1|256|512)|bcrypt(?:_sha256)?|scrypt|md5|sha1)\$[A-Za-z0-9./=,$+_-]{24,}+"
            r"|\b(?:pbkdf2:sha\d{1,3}:\d{1,8}|scrypt:\d{1,8}:\d{1,3}:\d{1,3})\$[A-Za-z0-9./=$+_-]{24,}+"
            r"|\{(?:S?(?:SHA|MD5)|SSHA(?:256|384|512)|CRYPT)\}[A-Za-z0-9+/=$.]{16,}+|\bSCRAM-SHA-(?:1|256|512)\$[A-Za-z0-9+/=:$]{32,}+"
            r"|(?m:^)(?:[a-z_][a-z0-9_-]{0,31}):(?P<secret>[A-Za-z0-9./]{13})(?=:\d{0,6}:\d{0,6}:)"
        ),
        r"\$(?:[1567y]|2[abxy]|gy|md5|sha1|apr1|[PH]|argon2\w*|s?crypt|pbkdf2[\w-]*|bcrypt-sha256)\$"
        r"|\b(?:pbkdf2_sha\d+|bcrypt\w*|scrypt|md5|sha1)\$|pbkdf2:sha|scrypt:\d|\{(?:s?sha|s?md5|crypt)|scram-sha-\d+\$"
        r"|:[a-z0-9./]{13}:\d*:\d*:",
    ),
    SecretRule(
        "key-list",
        "Keys of wallets in the lists that test networks print, such as `(0) 0x…`",
        re.compile(r"(?<!\w)\(\d{1,3}\) (?P<secret>0x[0-9a-fA-F]{64})\b"),
        r"\(\d+\) 0x[0-9a-f]{8}",
    ),
    SearchRule(
        "card",
        "Numbers of payment cards with a right check digit",
        checked_numbers.find_cards,
        checked_numbers.CARD_HINT,
    ),
    SearchRule(
        "iban",
        "Numbers of bank accounts (IBAN) with right check digits",
        checked_numbers.find_ibans,
        checked_numbers.IBAN_HINT,
    ),
    SecretRule(
        "ssn",
        "Social security numbers of the USA, such as `123-45-6789`",
        re.compile(
            r"(?<![\w+./-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w/-])|(?i:\bssn)\W{1,4}(?P<secret>\d{3} \d\d \d{4})\b"
        ),
        r"\b\d{3}[ -]\d{2}[ -]\d{4}\b",
    ),
)
_BY_CONTEXT: tuple[SecretRule | SearchRule, ...] = (
    SecretRule(
        "private-key",
        "Private keys in PEM form (RSA, EC, OpenSSH, PGP)",
        # Without an end, all that follows may belong to the key.
        re.compile(
            r"(?i)-----BEGIN[ A-Z0-9_-]{0,64}PRIVATE KEY(?: BLOCK)?-----(?:[^-]++|-(?!----END ))*+"
            r"(?:-----END[ A-Z0-9_-]{0,64}PRIVATE KEY(?: BLOCK)?-----)?+"
        ),
        "-----BEGIN",
    ),
    SecretRule(
        "authorization",
        "`Authorization` headers of every scheme, such as `Authorization: token …`",
        re.compile(
            r"(?i)\b(?:proxy-)?authorization(?:\\{0,3}[\"'`])?\s{0,4}[:=,]\s{0,4}(?:\\{0,3}[\"'`])?"
            r"(?:(?:basic|bearer|token|api-?key|key|negotiate|ntlm|splunk|genie-?key|bot|ssws|sso-key|apikey)\s{1,4}"
            r"(?P<secret>[^\s\"'`,;\\]{4,}+)|(?:digest|oauth|aws4-hmac-sha256|hawk|signature)\s{1,4}(?P<double>[^\r\n`\\]{8,2048}))"
        ),
        "authorization",
        checked=True,
    ),
    SecretRule(
        "bearer",
        "`Bearer …` and `Basic …`, with or without a header",
        re.compile(
            r"(?i)\b(?:bearer|basic)\s{1,4}(?P<secret>(?=[A-Za-z0-9._~+/-]{0,200}(?:[0-9=]|(?-i:[a-z][A-Z])))[A-Za-z0-9._~+/=-]{12,}+)"
        ),
        r"(?:bearer|basic)\s",
    ),
    SecretRule(
        "aws-key",
        "Access keys of AWS, with a secret key that stands beside one",
        re.compile(
            r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b(?:[\s,:;|\"']{1,20}[A-Za-z0-9/+=]{40}(?![A-Za-z0-9/+=]))?"
        ),
        r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{4}",
    ),
    SecretRule(
        "webhook",
        "Addresses that let anybody post (Slack, Discord, Teams, Telegram, Google Chat, Zapier, IFTTT, PagerDuty and others)",
        re.compile(
            r"(?i)\bhooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/(?P<secret>[\w/+-]{8,}+)"
            r"|\bdiscord(?:app)?\.com/api/(?:v\d+/)?webhooks/(?P<double>[\w/-]{8,}+)"
            r"|\b(?:webhook\.office\.com|outlook\.office(?:365)?\.com/webhook|logic\.azure\.com)/(?P<single>[^\s\"'<>]{8,}+)"
            r"|\b(?:api\.telegram\.org/bot|hooks\.zapier\.com/hooks/catch/|chat\.googleapis\.com/v1/spaces/|events\.pagerduty\.com/integration/"
            r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v\d/hook/|oapi\.dingtalk\.com/robot/send\?access_token=|hc-ping\.com/"
            r"|qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=|maker\.ifttt\.com/trigger/[\w-]{1,64}/with/key/)(?P<plain>[^\s\"'<>]{8,}+)"
        ),
        r"hooks\.slack|discord(?:app)?\.com|webhook\.office|outlook\.office|logic\.azure|api\.telegram|hooks\.zapier|chat\.googleapis|events\.pagerduty|feishu"
        r"|larksuite|dingtalk|hc-ping|weixin|ifttt",
    ),
    SecretRule(
        "url-password",
        "Passwords in addresses and in DSNs, such as `postgres://user:…@host`",
        re.compile(
            rf"(?<=://)[^\s/@:\"']{{0,128}}:{_NO_VARIABLE}(?P<secret>[^\s@\"'/]{{1,256}}+)(?=@)"
            r"|(?<=://)(?P<double>[A-Za-z0-9_-]{20,}+)(?=@)|(?<=[\w.-]):(?P<single>[^\s@\"'/:]{1,256})(?=@(?:tcp|unix)\()"
            rf"|\b(?:jdbc:oracle:\w{{2,5}}:|sqlplus\s{{1,4}}(?:-\w{{1,8}}\s{{1,4}})?)[^\s/@:\"']{{1,128}}/{_NO_VARIABLE}(?P<plain>[^\s@\"'/]{{1,256}}+)(?=@)"
        ),
        r"://[^\s/@]*@|@(?:tcp|unix)\(|://[^\s@]*:[^\s@]*@|jdbc:oracle|sqlplus",
    ),
    SecretRule(
        "url-parameter",
        "Signatures, keys and tokens in the query of an address",
        re.compile(
            r"(?i)[?&](?:x-amz-(?:signature|security-token|credential)|x-goog-signature|sig|signature|key|api_?key|subscription-key|hapikey|appid"
            r"|sas|auth|token|access_token|client_secret)=(?P<secret>[^\s&\"'<>#\\]{8,}+)"
        ),
        r"[?&][\w-]*(?:sig|signature|key|token|appid|sas|auth|secret|credential)=",
        checked=True,
        weak=True,
    ),
    SecretRule(
        "user-password",
        "Names with passwords, such as `-u user:pass`",
        re.compile(
            r"(?<![\w-])(?:-u|-U|--user|--proxy-user|--userpwd|--creds)(?:\\{0,3}[\"'`])?(?:\s{1,4}|=|,\s{0,4})(?:\\{0,3}[\"'`])?"
            rf"[^\s:\"'`/\\]{{1,128}}:(?!//){_NO_VARIABLE}(?P<secret>(?!\d{{1,6}}\b)[^\s\"'`\\]{{2,}}+)"
        ),
        r"-(?:u|-user|-proxy-user|-userpwd|-creds)[\"'\\\s=,]",
    ),
    SecretRule(
        "short-option",
        "Passwords in short options of programs that have them (sshpass, mysql, docker login, redis-cli, az login, and others)",
        re.compile(
            r"(?i)\b(?:sshpass\s{1,4}-p\s{0,4}|(?:mysql|mariadb)(?:dump|admin|import|check)?\s[^\n|;&]{0,200}?(?<![-\w])(?-i:-p)(?=[^\s\"'-])"
            r"|(?:docker|podman|helm\s{1,4}registry|oc|az|npm|skopeo|crane|buildah)\s{1,4}login\s[^\n|;&]{0,200}?(?-i:-p)[\s=]{1,4}"
            r"|(?:redis|valkey)-cli\s[^\n|;&]{0,200}?(?-i:-a)\s{1,4}|(?:mongo|mongosh|mongodump|mongorestore|ldapsearch|ldapmodify|sqlcmd|unzip|smbclient|ipmitool)"
            r"\s[^\n|;&]{0,200}?\s(?-i:-p|-w|-P)\s{1,4}|7z[ar]?\s[^\n|;&]{0,200}?\s(?-i:-p)(?=[^\s\"'-])|htpasswd\s{1,4}-\w{0,6}b\w{0,6}\s{1,4}\S{1,200}\s{1,4}\S{1,64}\s{1,4})"
            r"[\"']?(?P<plain>[^\s\"'|;&]{3,}+)"
        ),
        "sshpass|mysql|mariadb|login|(?:redis|valkey)-cli|mongo|ldap|sqlcmd|unzip|7z|smbclient|ipmitool|htpasswd",
        checked=True,
    ),
    SecretRule(
        "cookie",
        "Cookies of requests and responses",
        re.compile(
            r"(?i)\b(?:set-)?cookie(?:\\{0,3}[\"'`])?\s{0,4}[:=]\s{0,4}(?:\\{0,3}[\"'`])?(?P<secret>[^\s=;\"'`\\]{1,200}=[^\r\n\"'`\\]{4,}+)"
        ),
        r"cookie\W{0,8}[:=]",
    ),
    SearchRule(
        "option",
        "Values of command-line options, such as `--password x`, `--token=x` and the lists of arguments that programs start with",
        named_values.find_options,
        named_values.OPTION_HINT,
    ),
    SearchRule(
        "assignment",
        'Values beside a name that says so, in many languages: `PGPASSWORD=x`, `api_key: x`, `"client_secret": "x"`, `passwort: x`,'
        " and `name: DB_PASSWORD` with `value: x`",
        named_values.find_named,
        named_values.HINT,
    ),
    SearchRule(
        "header-pair",
        'Headers in lists of pairs, such as `("X-Api-Key", "x")`',
        named_values.find_headers,
        named_values.HEADER_HINT,
    ),
    SearchRule(
        "environment",
        "Variables set without a sign of equality, such as `ENV API_KEY x` and `setx API_KEY x`",
        named_values.find_variables,
        named_values.VARIABLE_HINT,
    ),
    SearchRule(
        "element", "XML elements whose name says so", named_values.find_elements, named_values.ELEMENT_HINT
    ),
    SecretRule(
        "login",
        "Logins in `.netrc`, `.pgpass` and SQL, such as `IDENTIFIED BY '…'`",
        re.compile(
            r"(?i)\bmachine\s{1,4}\S{1,253}\s{1,8}login\s{1,4}\S{1,253}\s{1,8}password\s{1,4}(?P<plain>\S{2,}+)"
            r"|\b(?:identified\s{1,4}by|(?:encrypted\s{1,4})?password)\s{1,4}'(?P<single>[^'\n]{3,256})'"
            r"|(?m:^)[^\s:]{1,253}:(?:5432|5433|6432|\*):[^\s:]{1,64}:[^\s:]{1,64}:(?P<secret>\S{3,}+)"
        ),
        r"login\s|identified\s+by|password\s+'|:(?:5432|5433|6432|\*):",
    ),
    SecretRule(
        "sentence",
        'Sentences that give a password away, such as "the password is hunter2"',
        re.compile(
            r"(?i)\b(?:password|passphrase|passcode|api key|access token|secret key)\s{1,4}(?:is|was|are):?\s{1,4}[\"'`]?"
            r"(?P<secret>(?=[^\s\"'`]{0,64}[\d!@#$%^&*_-])[^\s\"'`,]{5,}+)"
        ),
        r"(?:password|passphrase|passcode|api key|access token|secret key)\s+(?:is|was|are)\b",
        checked=True,
    ),
)
RULES = (*_BY_FORM, *_BY_CONTEXT)
PERCENT = r"%(?:3[ad]|2[026]|40)"
"""In texts whose signs are percent-encoded: spaces, quotes, and the signs of assignments and addresses."""
PERCENT_ENCODED = re.compile(r"(?<![A-Za-z0-9_.~*!()+%-])[A-Za-z0-9_.~*!()+%-]{8,}+")
BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,}+={0,2}")
"""Texts in which any of the above may be encoded."""


def _set_of(patterns: Iterable[str]) -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True
    options.max_mem = 32 << 20
    found = re2.Set.SearchSet(options)
    for pattern in patterns:
        found.Add(pattern)
    found.Compile()
    return found


# Patterns that have nothing in common multiply the states of one automaton: three are built faster for new texts.
_FORM_HINTS = _set_of(rule.hint for rule in _BY_FORM)
_CONTEXT_HINTS = _set_of([*(rule.hint for rule in _BY_CONTEXT), PERCENT])
_LONG_HINTS = _set_of((r"[a-z0-9+/_-]{24}", seed_phrases.HINT))
PERCENT_HINT, BASE64_HINT, PHRASE_HINT = range(len(RULES), len(RULES) + 3)
_LONG_CHARACTERS = 24
"""Characters of the shortest text in base64 that is decoded, and fewer than those of any seed phrase."""


def may_contain_secret(name: str) -> bool:
    """Return whether a name, or several, may contain a secret; a name that encodes one is none."""
    data = name.encode("utf-8", "replace")
    return bool(_FORM_HINTS.Match(data) or _CONTEXT_HINTS.Match(data))


def hints_at(text: str) -> list[int]:
    """Return what a text may contain: indices of rules, and those of percent-encoding, base64 and seed phrases."""
    data = text.encode("utf-8", "replace")  # once for all
    found: list[int] = sorted(_FORM_HINTS.Match(data) or ())
    by_context = _CONTEXT_HINTS.Match(data)
    if by_context:
        found += [len(_BY_FORM) + at for at in sorted(by_context)]
    long_parts = _LONG_HINTS.Match(data) if len(text) >= _LONG_CHARACTERS else None
    if long_parts:
        found += [BASE64_HINT + at for at in long_parts]
    return found
