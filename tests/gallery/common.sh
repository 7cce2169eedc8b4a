# Functions for the scripts `run` of this folder, which source this file with their arguments.
#
# Sets `server` (the command of the server, as an array), `kind` (`bowline` or `etcd`), `cache` (downloaded and built
# files, kept) and `work` (a temporary folder, deleted at the end). All processes started with `start` end with the script.
set -euo pipefail

gallery=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$gallery/../.." && pwd)
# The folder of the script that sources this file.
folder=$(basename "$(cd "$(dirname "$0")" && pwd)")
cache=${CARGO_TARGET_DIR:-$root/target}/gallery
kind=bowline
server=()

die() {
    printf '%s: error: %s\n' "$0" "$*" >&2
    exit 2
}

while (($#)); do
    case $1 in
        --etcd)
            [[ -x ${2-} ]] || die "--etcd needs the path of an etcd program"
            kind=etcd
            server=("$(realpath "$2")")
            shift 2
            ;;
        *) die "unknown argument $1; usage: run [--etcd PATH], with BOWLINE=PATH for another bowline program" ;;
    esac
done

if [[ $kind == bowline ]]; then
    target=${CARGO_TARGET_DIR:-$root/target}
    for program in "${BOWLINE:-$target/release/bowline}" "${BOWLINE:-$target/debug/bowline}"; do
        [[ -x $program ]] && server=("$(realpath "$program")" serve) && break
    done
    ((${#server[@]})) || die "no bowline program; build one with: cargo build --release -p bowline-cli"
fi

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
work=$(mktemp -d)
results=$work/results
groups=()
: >"$results"

# Ends all process groups that were started, and deletes the temporary folder.
finish() {
    local status=$? group
    trap - EXIT INT TERM
    for group in ${groups[@]+"${groups[@]}"}; do
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# start LOG COMMAND...: starts a command in a process group of its own. Sets `started` to its id.
start() {
    local log=$1
    shift
    setsid "$@" >"$log" 2>&1 </dev/null &
    started=$!
    groups+=("$started")
}

# run_to_end LOG COMMAND...: starts a command and waits for it. Returns its exit code.
run_to_end() {
    local code=0
    start "$@"
    wait "$started" || code=$?
    # Processes that the command left running.
    kill -KILL -- "-$started" 2>/dev/null || true
    return "$code"
}

is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port: sets `port` to a free port whose successor is also free. The range is below that of outgoing connections.
free_port() {
    while port=$((20000 + RANDOM % 6000 * 2)); is_open "$port" || is_open $((port + 1)); do :; done
}

# start_server PORT [FLAG...]: starts a server of one member. PORT + 1 is for members.
start_server() {
    local client=$1 url=http://127.0.0.1:$1 peer=http://127.0.0.1:$(($1 + 1)) tries
    shift
    ! is_open "$client" || die "port $client is in use; end the program that listens there"
    start "$work/server-$client.log" "${server[@]}" --name=default --data-dir="$work/server-$client" \
        --listen-client-urls="$url" --advertise-client-urls="$url" --listen-peer-urls="$peer" \
        --initial-advertise-peer-urls="$peer" --initial-cluster="default=$peer" "$@"
    for ((tries = 0; tries < 300; tries++)); do
        curl -fs "$url/health" 2>/dev/null | grep -q '"health":"true"' && return
        kill -0 "$started" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/server-$client.log" >&2
    die "${server[*]} did not start"
}

# need NAME VERSION TOOL...: skips the program aloud if a tool is missing.
need() {
    local name=$1 version=$2 tool
    shift 2
    for tool in curl setsid "$@"; do
        command -v "$tool" >/dev/null && continue
        printf 'SKIPPED: %s %s: needs %s\n' "$name" "$version" "$tool"
        [[ -z ${BOWLINE_REQUIRE_TOOLS-} ]] || exit 1
        exit 0
    done
}

# go_module MODULE VERSION SUM: downloads a Go module, compares its sum with the pinned one and sets `module` to a
# copy that can be written to.
go_module() {
    local json source
    json=$(cd "$work" && go mod download -json "$1@$2") || die "download of $1@$2 failed: $json"
    grep -qF "\"Sum\": \"$3\"" <<<"$json" || die "$1@$2 does not have the pinned sum $3: $json"
    source=$(sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p' <<<"$json")
    module=$cache/$(basename "$1")-$2
    if [[ ! -d $module ]]; then
        rm -rf "$module.new"
        cp -R "$source" "$module.new"
        chmod -R u+w "$module.new"
        mv "$module.new" "$module"
    fi
    export GOFLAGS=-mod=mod GOTOOLCHAIN=${GOTOOLCHAIN:-local}
}

# go_tests PACKAGE [ARGUMENT...]: builds and runs the tests of a package of `module`, and adds their results. Tests with
# subtests count, as do their subtests.
go_tests() {
    local log=$work/tests.log code=0 failed
    cd "$module"
    run_to_end "$log" nice go test -v -count=1 -timeout 20m "$@" || code=$?
    sed -n 's/^ *--- PASS: \([^ ]*\).*/pass \1/p; s/^ *--- FAIL: \([^ ]*\).*/fail \1/p;
        s/^ *--- SKIP: \([^ ]*\).*/skip \1/p' "$log" >"$work/new"
    failed=$(grep -c '^fail ' "$work/new" || true)
    if ((code && !failed)) || [[ ! -s $work/new ]]; then
        tail -n 50 "$log" >&2
        echo "fail $1 (no test failed, exit code $code)" >>"$work/new"
    fi
    cat "$work/new" >>"$results"
    if ((failed)); then cp "$log" "$cache/$folder-failed.log"; fi
}

expected=()

# expect_failure KIND PATTERN REASON: the tests whose names match may fail. KIND is `bowline`, `etcd` or `both`. For
# `bowline`, docs/etcd-compatibility.md has the reason.
expect_failure() {
    if [[ $1 == both || $1 == "$kind" ]]; then expected+=("$2=$3"); fi
}

# report NAME VERSION: prints the failures and the counts. Ends the script, with 1 if a failure was not expected.
report() {
    local verdict name entry reason code=0 passed failed skipped
    passed=$(grep -c '^pass ' "$results" || true)
    failed=$(grep -c '^fail ' "$results" || true)
    skipped=$(grep -c '^skip ' "$results" || true)
    while read -r verdict name; do
        reason=
        for entry in ${expected[@]+"${expected[@]}"}; do
            # shellcheck disable=SC2053 # a pattern
            if [[ $name == ${entry%%=*} ]]; then reason=${entry#*=}; fi
        done
        if [[ $verdict == pass && $reason ]]; then
            printf 'passed, though a failure was expected (%s): %s\n' "$reason" "$name"
        elif [[ $verdict == fail && $reason ]]; then
            printf 'failed as expected (%s): %s\n' "$reason" "$name"
        elif [[ $verdict == fail ]]; then
            printf 'FAILED: %s\n' "$name"
            code=1
        elif [[ $verdict == skip ]]; then
            printf 'skipped by the suite: %s\n' "$name"
        fi
    done <"$results"
    ((passed)) || code=1
    printf '%s %s: %d passed, %d failed' "$1" "$2" "$passed" "$failed"
    if ((skipped)); then printf ', %d skipped' "$skipped"; fi
    printf '\n'
    exit "$code"
}
