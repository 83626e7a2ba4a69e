"""The rules by which secrets are found: one entry for each, with the plain texts that hint at it.

A mark in a stored event names its rule, such as ``[redacted:vault-token:1f0a2b3c4d5e]``.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import lru_cache

import re2

_STRONG = (
    r"passwords?|passwd|pwd|passphrase|secrets?|client[_-]?secret|(?:auth|access|refresh|id|bearer|session|security)[_-]?token"
    r"|token|api[_-]?keys?|access[_-]?key(?:[_-]?id)?|secret[_-]?(?:access[_-]?)?key|private[_-]?key|account[_-]?key"
    r"|shared[_-]?access[_-]?(?:key|signature)|encryption[_-]?key|signing[_-]?key|master[_-]?key|(?:client|server)[_-]?key[_-]?data"
    r"|authorization|proxy-authorization|set-cookie|cookies?|credentials?|connection[_-]?string|webhook[_-]?url|otp|passcode|pin[_-]?code"
)
_WEAK = r"pass|auth|tokens|auths|pat"
"""Names that are also used for harmless values; the value has to look like a secret too."""

SENSITIVE_KEY = re.compile(rf"(?i)^(?:.*[_\-. ])?(?:{_STRONG})$|^[a-z]{{1,12}}(?:password|passwd|pwd)$")
WEAK_KEY = re.compile(rf"(?i)^(?:.*[_\-. ])?(?:{_WEAK})$")
HARMLESS_KEY = re.compile(
    r"(?i)(?:page|next|continuation|cursor|sync|eos|bos|pad|unk|sep|cls|mask|stop|special|start|end|prompt|completion)[_-]?tokens?$"
    r"|(?:public|max|min|num|total|input|output|cached?|reasoning)[_-](?:keys?|tokens?)$"
)
"""Cursors of lists and entries of vocabularies are also called tokens but are not secrets."""

PLAIN_VALUE = re.compile(
    r"(?i)\A(?:(?:true|false|null|none|nil|undefined|yes|no|on|off|string|str|int|integer|number|bool|boolean|bytes|object|any|optional"
    r"|required|missing|invalid|expected|expired|empty|unset|default|basic|bearer|digest|oauth2?|oidc|saml|jwt|redacted|hidden"
    r"|masked|failed|passed|ok|error|denied|unknown|disabled|enabled|is|was|not|for|to|from|must|and|or|[*x.•…-]{3,})[.!?)]*"
    # A placeholder, a variable or an expression of a program.
    r"|[<{\[(].*|\$[{(]?\w.*|%[({\w].*|(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*(?:[\[(].*)?|[A-Za-z_]\w*[\[(].*)\Z"
)
_WEAK_VALUE = re.compile(r"\A(?=\S*[\d!@#$%^&*:+/=~-])\S{6,}\Z")

_START = r"(?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z0-9])(?=[A-Z])))"
"""Where a word of a name begins, as in ``db_password`` and ``clientSecret``."""
_NUMBER = re.compile(r"\A[-+]?[\d.,_]+(?:e[-+]?\d+)?%?\Z")
_NAMES = rf"(?:{_START}(?:{_STRONG})|(?:password|passwd|pwd))"
_QUOTE = r"\\{0,3}[\"'`]"
_NO_VARIABLE = r"(?!\$(?:[({]|[A-Z_][A-Z0-9_]*+(?![^\s\"'`@/])))"
"""Before a value that must be neither ``${NAME}`` nor ``$NAME``."""
_VALUE = r"(?:\\{0,3}\"(?P<double>[^\"\\\n]{3,4096})|\\{0,3}'(?P<single>[^'\\\n]{3,4096})|(?P<plain>[^\s\"'`,;&<>\\]{4,}+))"


@dataclass(frozen=True, slots=True)
class SecretRule:
    """One kind of secret.

    Parameters
    ----------
    name
        Shown in the mark.
    finds
        What it finds, for the documentation.
    pattern
        Runs in linear time on any text. What is replaced is the first of the groups ``secret``, ``double``, ``single``
        and ``plain`` that took part, or else the whole match. ``no_secret`` marks a match to leave alone.
    hint
        The rule runs only on texts in which this is found, in small or capital letters. All hints together are one
        pattern of RE2, which passes over a text once.
    checked
        Whether a value without quotes that reads like a plain word, a placeholder or an expression is left alone.
    weak
        Whether the value has to look like a secret as well.
    """

    name: str
    finds: str
    pattern: re.Pattern[str]
    hint: str
    checked: bool = False
    weak: bool = False

    def replaced_group(self, found: re.Match[str]) -> int | str | None:
        """Return the group to replace, or None if the match is not a secret."""
        groups = self.pattern.groupindex
        if "name" in groups and HARMLESS_KEY.search(
            found.string[max(0, found.start() - 40) : found.end("name")]
        ):
            return None
        if "no_secret" in groups and found["no_secret"] is not None:
            return None
        group: int | str = next(
            (
                name
                for name in ("secret", "double", "single", "plain")
                if name in groups and found[name] is not None
            ),
            0,
        )
        value = found[group]
        if self.checked and is_plain(value) and (group not in ("double", "single") or len(value) < 4):
            return None
        if self.checked and group in ("double", "single") and _is_placeholder(value):
            return None
        if self.weak and not looks_secret(value):
            return None
        return group


RULES: tuple[SecretRule, ...] = (
    SecretRule(
        "private-key",
        "Private keys in PEM form (RSA, EC, OpenSSH, PGP), and age keys",
        # Without an end, all that follows may belong to the key.
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]++|-(?!----END ))*+"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?+|AGE-SECRET-KEY-1[0-9A-Z]{50,}+"
        ),
        "-----BEGIN|age-secret-key",
    ),
    SecretRule(
        "jwt",
        "JSON web tokens",
        # What begins like one and is none is passed over as a whole: trying again from each place inside it takes
        # quadratic time.
        re.compile(
            r"\beyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+|(?P<no_secret>\beyJ[A-Za-z0-9_-]*+)"
        ),
        "eyJ",
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
        "loopguard-key",
        "API keys of LoopGuard",
        re.compile(r"\blg_[0-9a-hjkmnp-tv-z]{10}_[0-9a-f]{64,}+"),
        "lg_",
    ),
    SecretRule(
        "aws-key",
        "Access keys of AWS, with a secret key that stands beside one",
        re.compile(
            r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b(?:[\s,:;|\"']{1,20}[A-Za-z0-9/+=]{40}(?![A-Za-z0-9/+=]))?"
        ),
        "AKIA|ASIA|ABIA|ACCA",
    ),
    SecretRule(
        "google-key",
        "API keys, OAuth tokens and client secrets of Google",
        re.compile(
            r"\bAIza[0-9A-Za-z_-]{30,}+|\bya29\.[0-9A-Za-z_-]{16,}+|\bGOCSPX-[0-9A-Za-z_-]{16,}+|\b1//0[0-9A-Za-z_-]{20,}+"
        ),
        r"AIza|ya29\.|GOCSPX-|1//0",
    ),
    SecretRule(
        "github-token",
        "Tokens of GitHub and GitLab",
        re.compile(
            r"\bgh[pousr]_[A-Za-z0-9]{20,}+|\bgithub_pat_[A-Za-z0-9_]{20,}+|\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-[A-Za-z0-9_.-]{16,}+"
        ),
        r"gh[pousr]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-",
    ),
    SecretRule(
        "model-key",
        "Keys of model providers (OpenAI, Anthropic, Groq, xAI, Hugging Face, Replicate, Perplexity and others)",
        re.compile(
            r"\bsk-[A-Za-z0-9_-]{16,}+|\b(?:gsk|hf|r8|fw|csk|tgp_v1)_[A-Za-z0-9_-]{24,}+|\b(?:xai|pplx|nvapi)-[A-Za-z0-9_-]{24,}+"
            r"|\blsv2_(?:pt|sk)_[A-Za-z0-9_]{24,}+"
        ),
        r"\bsk-|\b(?:gsk|hf|r8|fw|csk|tgp_v1|lsv2)_|\b(?:xai|pplx|nvapi)-",
    ),
    SecretRule(
        "vault-token",
        "Tokens of Vault, Doppler, 1Password, Terraform Cloud and Pulumi",
        re.compile(
            r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}+|(?<![\w.])[sb]\.[A-Za-z0-9]{24,26}(?![\w.])|\bdp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{20,}+"
            r"|\bops_eyJ[A-Za-z0-9_=-]{40,}+|\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}+|\bpul-[0-9a-f]{40}\b"
        ),
        r"\bhv[sbr]\.|\b[sb]\.[A-Za-z0-9]{24}|\bdp\.|\bops_|atlasv1|\bpul-",
    ),
    SecretRule(
        "service-token",
        "Tokens that other services mark by a prefix (Slack, Stripe, npm, PyPI, SendGrid, Twilio, Shopify, Grafana and others)",
        re.compile(
            r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}+|\bxapp-[A-Za-z0-9-]{20,}+|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+|\bwhsec_[A-Za-z0-9+/=]{16,}+"
            r"|\bnpm_[A-Za-z0-9]{30,}+|\bpypi-[A-Za-z0-9_-]{30,}+|\brubygems_[0-9a-f]{40,}+|\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}+"
            r"|\bSG\.[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+|\bkey-[0-9a-f]{32}\b|\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b"
            r"|\bgl(?:sa|c)_[A-Za-z0-9+/=_]{20,}+|\bdapi[0-9a-f]{32}\b|\blin_(?:api|oauth)_[A-Za-z0-9]{32,}+|\b(?:ntn|secret)_[A-Za-z0-9]{40,}+"
            r"|\bdo[opr]_v1_[0-9a-f]{40,}+|\bNRAK-[A-Z0-9]{20,}+|\bsntry[su]_[A-Za-z0-9+/=_-]{30,}+|\bpscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.-]{20,}+"
            r"|\bsbp_[0-9a-f]{40}\b|\bPMAK-[0-9a-f]{24}-[0-9a-f]{20,}+|\btskey-[a-z]{2,10}-[A-Za-z0-9-]{16,}+|\bATATT3[A-Za-z0-9_=-]{40,}+"
            r"|\bnfp_[A-Za-z0-9]{30,}+|\bFlyV1 fm\d_[A-Za-z0-9+/=,_-]{40,}+|\bEAA[A-Za-z0-9]{40,}+|\bsq0(?:atp|csp)-[A-Za-z0-9_-]{20,}+"
            r"|\bfigd_[A-Za-z0-9_-]{30,}+|\bphc_[A-Za-z0-9]{40,}+|\bphx_[A-Za-z0-9]{40,}+|\b(?:CCIPAT|ccipat)_[A-Za-z0-9_]{30,}+"
        ),
        r"\bxox[a-z]-|\bxapp-|\b[rs]k_(?:live|test)_|\bwhsec_|\bnpm_|\bpypi-|\brubygems_|\bdckr_|\bSG\.|\bkey-[0-9a-f]|\bshp[a-z]{2}_|\bgl(?:sa|c)_"
        r"|\bdapi[0-9a-f]|\blin_|\b(?:ntn|secret)_|\bdo[opr]_v1_|\bNRAK-|\bsntry|\bpscale_|\bsbp_|\bPMAK-|\btskey-|\bATATT3|\bnfp_|\bFlyV1"
        r"|\bEAA|\bsq0|\bfigd_|\bph[cx]_|\bccipat_",
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
        "bot-token",
        "Bot tokens of Telegram and Discord",
        re.compile(
            r"\b\d{8,10}:AA[A-Za-z0-9_-]{33}\b|\b[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}\b"
        ),
        r"\d:AA|\.[A-Za-z0-9_-]{6}\.",
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
        "option",
        "Values of command-line options, such as `--password x`, `--token=x` and the lists of arguments that programs start with",
        re.compile(
            rf"(?i)(?<![\w-])--?(?:[a-z0-9]{{1,20}}-){{0,4}}(?:(?:store|key|src|dest|user|root|admin|db|sudo|become)?pass(?:word)?|passwd|passphrase|pwd|token|secret|api-?key|access-?key|secret-?key"
            rf"|auth-?key|private-?key|auth-?token|auth|credentials?|account-?key|client-?secret|sas-?token|bearer|connection-?string)"
            rf"(?:{_QUOTE})?(?:\s{{1,4}}|=|,\s{{0,4}})(?!-){_VALUE}"
        ),
        r"-[a-z-]*(?:pass|pwd|token|secret|key|auth|credential|bearer|string)",
        checked=True,
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
    SecretRule(
        "header-pair",
        'Pairs of a name and a value, such as `{"name": "X-Api-Key", "value": …}`, inside other text',
        re.compile(
            rf"(?i){_QUOTE}(?:name|key|header|field|variable|env)(?:{_QUOTE})\s{{0,4}}:\s{{0,4}}{_QUOTE}[\w.-]{{0,64}}?(?:{_NAMES}|{_WEAK})(?:{_QUOTE})"
            rf"\s{{0,4}},\s{{0,4}}{_QUOTE}(?:value|val|content|secret)(?:{_QUOTE})\s{{0,4}}:\s{{0,4}}{_VALUE}"
        ),
        r"(?:name|key|header|field|variable|env)[\\\"'`]+\s*:",
        checked=True,
    ),
    SecretRule(
        "assignment",
        'Values beside a name that says so: `PGPASSWORD=x`, `api_key: x`, `"client_secret": "x"`',
        re.compile(
            rf"(?i)(?P<name>{_NAMES})(?:\\{{0,3}}[\"'`]\]?|\])?\s{{0,4}}(?:=>|:=|[=:])\s{{0,4}}(?:b(?=['\"]))?(?!\d{{1,9}} bytes\b){_VALUE}"
        ),
        r"(?:passw|passphrase|passcode|pwd|otp|pin[_-]?code|secret|token|api[_-]?key|[a-z][_-]?key|authorization|cookie|credential|connection[_-]?string|shared"
        r"|webhook|key[_-]?id|key[_-]?data)[\w-]*[\\\"'`\]]*\s*(?:[:=])",
        checked=True,
    ),
    SecretRule(
        "environment",
        "Variables set without a sign of equality, such as `ENV API_KEY x` and `setx API_KEY x`",
        re.compile(
            rf"(?i)(?<![^\s;&|])(?:ENV|ARG|setenv|setx)[ \t]{{1,4}}(?P<name>\w{{0,64}}?{_NAMES})[ \t]{{1,4}}(?![=:|&]){_VALUE}"
        ),
        r"\b(?:env|arg|setenv|setx)[ \t]",
        checked=True,
        weak=True,
    ),
    SecretRule(
        "weak-assignment",
        "Values beside `pass`, `auth`, `tokens` or `pat` that look like a secret",
        re.compile(
            rf"(?i)(?P<name>{_START}(?:{_WEAK}))(?:\\{{0,3}}[\"'`]\]?|\])?\s{{0,4}}(?:=>|=|:(?!\s*(?-i:[A-Z])))\s{{0,4}}{_VALUE}"
        ),
        rf"(?:{_WEAK})[\\\"'`\]]*\s*[:=]",
        checked=True,
        weak=True,
    ),
    SecretRule(
        "element",
        "XML elements and attributes whose name says so",
        re.compile(
            rf"(?i)<[\w:.-]{{0,64}}?(?:{_NAMES})(?:\s[^<>]{{0,200}})?>\s{{0,20}}(?P<secret>[^<>\s][^<>]{{2,4096}})(?=</)"
        ),
        "</",
        checked=True,
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
LONG_NUMBER = r"[2-6]\d{3}[ -]?\d{4}"
HEADER_IN_LIST = r"[\"'](?:(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]+|[\w-]*(?:key|token|secret|password))[\"']\s*,"
PERCENT = r"%(?:3[ad]|2[026]|40)"
"""In texts whose signs are percent-encoded: spaces, quotes, and the signs of assignments and addresses."""
CARD = re.compile(
    r"(?<![\w+.-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6\d{3})([ -]?)\d{4}\1\d{4}\1\d{4}|3[47]\d\d([ -]?)\d{6}\2\d{5}"
    r"|3[068]\d\d([ -]?)\d{6}\3\d{4})(?![\w-])"
)
PERCENT_ENCODED = re.compile(r"(?<![A-Za-z0-9_.~*!()+%-])[A-Za-z0-9_.~*!()+%-]{8,}+")
BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,}+={0,2}")
"""Texts in which any of the above may be encoded."""
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=4096)
def key_kind(key: str) -> str:
    """Return ``strong`` for the name of a field that contains a secret, ``weak`` for one that may, else an empty text.

    ``userPassword`` and ``user_password`` are one name.
    """
    spelled = CAMEL.sub("_", key)
    if HARMLESS_KEY.search(spelled):
        return ""
    return "strong" if SENSITIVE_KEY.match(spelled) else "weak" if WEAK_KEY.match(spelled) else ""


def is_plain(value: str) -> bool:
    """Return whether a value is a plain word, a placeholder, a mark, or an expression of a program."""
    return "[redacted:" in value or PLAIN_VALUE.match(value) is not None


def looks_secret(value: str) -> bool:
    """Return whether the value of a weakly named field has to be a secret: no plain word, and a digit or sign in it."""
    if value.startswith(("http://", "https://")) or _NUMBER.match(value):
        return False
    return bool(_WEAK_VALUE.match(value) or _is_login(value)) and not is_plain(value)


def _is_login(value: str) -> bool:
    """Return whether a value is a name and a password in base64."""
    try:
        name, colon, _ = base64.b64decode(value, validate=True).decode("ascii").partition(":")
    except ValueError:
        return False
    return bool(colon) and name.isprintable()


def _is_placeholder(value: str) -> bool:
    return (
        value[0] in "<{"
        or value.startswith(("${", "$(", "%("))
        or "[redacted:" in value
        or not value.strip("*x.•…- ")
    )


def is_card(text: str) -> bool:
    """Return whether a number is that of a payment card: not one digit alone, and the check digit is right."""
    digits = [int(char) for char in text if char.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _hints() -> re2.Set:
    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True
    options.max_mem = 32 << 20
    hints = re2.Set.SearchSet(options)
    for hint in (*(rule.hint for rule in RULES), LONG_NUMBER, HEADER_IN_LIST, PERCENT):
        hints.Add(hint)
    hints.Compile()
    return hints


HINTS = _hints()
"""Finds the rules that may apply to a text: indices in `RULES`, then numbers, headers in lists, percent-encoding."""
NUMBER_HINT = len(RULES)
PERCENT_HINT = NUMBER_HINT + 2
LONG_BASE64 = re2.compile(r"[A-Za-z0-9+/_-]{24}")
"""Apart from the hints: a count beside them multiplies the states of their automaton."""
