# A hook of a coding agent. Written by `loopguard hooks install`; the settings of the agent run it:
#
#   sh hook ADDRESS [end] [wait] [exit] [closed]
#
# It sends its input to LoopGuard and prints the answer, which is in the format of the agent. Nothing that fails here
# keeps the agent from working: it exits with 0, or 1 with `exit`, and tells the person once per session.
#
# end      the session ends: what its person has to know goes to stderr, which some agents show only now
# wait     wait until a held call is decided
# exit     the agent reads the exit code: a denial is 2, with its reason on stderr
# closed   exit with 2, which every agent takes for a denial, if LoopGuard does not answer
#
# Beside this file, or in LOOPGUARD_FOLDER, are `curl` with the key; `late`: until when no hook asks, because an answer
# was late, in seconds since 1970, and whom; and in `told` a file for each session whose person knows.
ANSWER_SECONDS=1.8
LATE_SECONDS=30
umask 077
here=${LOOPGUARD_FOLDER:-${0%/*}} address=$1 host=${1##*/} server=${1%%/api/v1/hooks/*}
shift
is_end='' waits='' by_exit='' is_closed=''
for word; do
  case $word in
    end) is_end=1 ;;
    wait) waits='?wait=45' ;;
    exit) by_exit=1 ;;
    closed) is_closed=1 ;;
  esac
done
body=$(cat)
break='
'

# Run curl, past any proxy if the server is on this machine.
request() {
  case $server in
    *//localhost | *//localhost:* | *//127.0.0.1 | *//127.0.0.1:* | *'//[::1]'*)
      curl -q -s --noproxy '*' -K "$here/curl" "$@" 2>/dev/null ;;
    *) curl -q -s -K "$here/curl" "$@" 2>/dev/null ;;
  esac
}

# Name the session by the characters that a name of a file may have.
session() {
  name=other
  for field in session_id sessionId conversation_id trajectory_id; do
    case $body in
      *"\"$field\""*) name=${body#*"\"$field\""} name=${name#*\"} name=${name%%\"*} && break ;;
    esac
  done
  case $name in
    '' | *[!A-Za-z0-9_-]*) name=other ;;
  esac
  echo "$name"
}

# Tell the person now what the hooks of the session have kept for its end; standard output is not shown to anybody then.
at_end() {
  case $is_end:$host:$CLAUDE_CODE_ENTRYPOINT in
    1:claude-code:sdk-*) ;;
    *) return 0 ;;
  esac
  kept=$here/told/$(session)
  [ ! -s "$kept" ] || { cat "$kept" >&2; exit 1; }
}

# Go on without an answer, for the reason given.
unguarded() {
  if [ -n "$is_closed" ]; then
    echo "LoopGuard is away, and this hook fails closed. $1" >&2
    exit 2
  fi
  at_end
  told=$here/told/$(session)
  [ ! -e "$told" ] || exit 0
  text="LoopGuard has not seen everything in this session: $1 Calls without an answer run."
  text="$text See: loopguard hooks check $host"
  mkdir -p "$here/told" 2>/dev/null && find "$here/told" -type f -mtime +1 -exec rm -f {} + 2>/dev/null
  (set -C; echo "$text" >"$told") 2>/dev/null || exit 0 # another hook has just told it
  at_end
  [ -z "$by_exit" ] || { echo "$text" >&2; exit 1; }
  case $host:$CLAUDE_CODE_ENTRYPOINT in
    claude-code:sdk-*) ;; # shows nothing before the end
    copilot:* | cursor:* | goose:* | openhands:*) echo "$text" >&2 ;; # they take no `systemMessage`
    *) printf '{"systemMessage":"%s"}' "$text" ;;
  esac
  exit 0
}

now=$(date +%s)
until='' of=''
[ ! -r "$here/late" ] || read -r until of <"$here/late"
case $until in
  *[!0-9]* | '' | ???????????????*) until=0 ;;
esac
[ "$of" = "$server" ] || until=0
if [ "$until" -gt "$now" ] && [ "$until" -le $((now + LATE_SECONDS)) ]; then
  unguarded "$server did not answer in time."
fi
[ "$until" = 0 ] || echo "$((now + LATE_SECONDS)) $server" >"$here/late" # one hook tries, the others go on

answer=$(printf '%s' "$body" | request -m "$ANSWER_SECONDS" -w '\n%{http_code}' --data-binary @- "$address$waits")
status=$?
code=${answer##*"$break"}
answer=${answer%"$break"*}
case $status in
  6 | 28) echo "$((now + LATE_SECONDS)) $server" >"$here/late" ;;
  *) [ "$until" = 0 ] || rm -f "$here/late" ;; # also an error is no late answer
esac
case $status:$code in
  0:200) ;;
  0:401 | 0:403) unguarded "$server does not accept the key in ~/.loopguard/curl." ;;
  0:*) unguarded "$server answered with the status $code." ;;
  6:* | 28:*) unguarded "$server did not answer in time." ;;
  *) unguarded "$server cannot be reached." ;;
esac
case $answer in
  '{"wait_url":'*)
    wait_url=${answer#*:\"}
    answer=$(request -f -m 48 "${wait_url%%\"*}") || { echo 'An operator has been asked.' >&2; exit 2; }
    ;;
esac
case $by_exit$answer in
  '1{"deny":"'*)
    answer=${answer#*:\"}
    echo "${answer%\"*}" >&2
    exit 2
    ;;
  1*) ;;
  '{"systemMessage":"'*)
    [ "$is_end:$host" = 1:claude-code ] || { printf '%s' "$answer"; exit 0; }
    answer=${answer#*:\"}
    echo "${answer%\"*}" >&2
    at_end
    exit 1
    ;;
  *)
    printf '%s' "$answer"
    at_end
    ;;
esac
exit 0
