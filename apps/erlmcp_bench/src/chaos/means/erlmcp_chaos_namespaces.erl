-module(erlmcp_chaos_namespaces).
-moduledoc """
A network namespace for a server, and a link (a veth pair) from it to the namespace of the
instruments. The link can go down and come back. Needs Linux, root, and `ip` of iproute2.
`erlmcp_chaos_program:reason/1` words the errors.

The addresses are from 198.18.0.0/15, which is reserved for network tests (RFC 2544).
""".

-export([start/0, stop/1, down/1, up/1, prefix/1, host/1, sweep/0]).

-export_type([link/0]).

-opaque link() :: #{keeper := erlmcp_chaos_keeper:keeper(), namespace := string(),
                    device := string(), host := inet:ip4_address()}.

-define(PREFIX, "erlmcp").

%% Removing one end removes both.
-define(MAKE, "
    ip netns add \"$1\" &&
    ip link add \"$2\" type veth peer name \"$3\" netns \"$1\" &&
    ip address add \"$4/30\" dev \"$2\" && ip link set \"$2\" up &&
    ip -n \"$1\" address add \"$5/30\" dev \"$3\" && ip -n \"$1\" link set \"$3\" up &&
    ip -n \"$1\" link set lo up").
-define(UNMAKE, "
    ip link delete \"$2\" 2>/dev/null
    ip netns delete \"$1\" 2>/dev/null").

-doc """
Calls `sweep/0`, and then makes a namespace and the link to it. Both are removed when the calling
process ends, or by `stop/1`.
""".
-spec start() -> {ok, link()} | {error, term()}.
start() ->
    ok = sweep(),
    Namespace = erlmcp_chaos_keeper:name(?PREFIX),
    {Own, Other} = devices(Namespace),
    {Here, There} = addresses(erlang:phash2(Namespace, 32_768)),
    maybe
        {ok, Keeper} ?= erlmcp_chaos_keeper:keep(?MAKE, ?UNMAKE,
                                                 [Namespace, Own, Other, inet:ntoa(Here),
                                                  inet:ntoa(There)]),
        {ok, #{keeper => Keeper, namespace => Namespace, device => Other, host => There}}
    end.

%% The kernel allows 15 bytes.
devices(Namespace) ->
    Hash = integer_to_list(erlang:phash2(Namespace, 1 bsl 32), 36),
    {"emc" ++ Hash ++ "a", "emc" ++ Hash ++ "b"}.

addresses(Index) ->
    First = (198 bsl 24) + (18 bsl 16) + 4 * Index,
    {address(First + 1), address(First + 2)}.

address(Number) ->
    <<A, B, C, D>> = <<Number:32>>,
    {A, B, C, D}.

-doc """
Removes the link and the namespace. Only the process that made them may do so. If a process still
runs in the namespace, the kernel keeps the namespace until that process ends.
""".
-spec stop(link()) -> ok | {error, term()}.
stop(#{keeper := Keeper}) ->
    erlmcp_chaos_keeper:release(Keeper).

-doc "Takes the link down: packets from either side are silently lost.".
-spec down(link()) -> ok | {error, erlmcp_chaos_program:reason()}.
down(Link) ->
    set(Link, "down").

-doc "Brings the link up again.".
-spec up(link()) -> ok | {error, erlmcp_chaos_program:reason()}.
up(Link) ->
    set(Link, "up").

set(#{namespace := Namespace, device := Device}, State) ->
    maybe
        {ok, _} ?= erlmcp_chaos_program:run("ip", ["-n", Namespace, "link", "set", Device, State]),
        ok
    end.

-doc "Returns the words to put before a command that runs in the namespace.".
-spec prefix(link()) -> [string()].
prefix(#{namespace := Namespace}) ->
    ["ip", "netns", "exec", Namespace].

-doc "Returns the address at the namespace's end of the link.".
-spec host(link()) -> inet:ip4_address().
host(#{host := Host}) ->
    Host.

-doc "Removes the namespaces that killed nodes had made with `start/0` and left behind.".
-spec sweep() -> ok.
sweep() ->
    case erlmcp_chaos_program:run("ip", ["netns", "list"]) of
        {ok, Listed} ->
            %% A line is the name, sometimes followed by "(id: N)".
            Names = [hd(string:lexemes(Line, " ")) || Line <- lines(Listed)],
            lists:foreach(fun remove/1, [Name || Name <- Names,
                                        erlmcp_chaos_keeper:owner_lives(?PREFIX, Name) =:= false]);
        {error, _} ->
            ok
    end.

remove(Namespace) ->
    {Own, _} = devices(Namespace),
    %% The namespace or the link may be gone already.
    _ = erlmcp_chaos_program:run("ip", ["link", "delete", Own]),
    _ = erlmcp_chaos_program:run("ip", ["netns", "delete", Namespace]),
    ok.

lines(Text) ->
    string:lexemes(binary_to_list(Text), "\n").
