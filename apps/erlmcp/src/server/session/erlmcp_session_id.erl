-module(erlmcp_session_id).
-moduledoc """
The ids of HTTP sessions, that nobody can guess: 192 bits of OpenSSL's generator, written down.

To draw random bytes costs more than to write them down, and hardly more for many than for a few.
So a process that opens a session for the second time, as a proxy's connection does, makes several
ids at once and keeps them in its dictionary. Each of them is given once. They are gone with the
process, and so what a report of its end shows of them opens nothing.
""".

-export([new/0]).

%% Random bytes of an id, and ids that are made at once.
-define(BYTES, 24).
-define(AT_ONCE, 16).

-doc "An id that no session has, nor had.".
-spec new() -> binary().
new() ->
    case get(?MODULE) of
        [Id | Ids] ->
            _ = put(?MODULE, Ids),
            Id;
        [] ->
            [Id | Ids] = ids(crypto:strong_rand_bytes(?AT_ONCE * ?BYTES)),
            _ = put(?MODULE, Ids),
            Id;
        undefined ->
            %% Most processes open one.
            _ = put(?MODULE, []),
            erlmcp_base64url:encode(crypto:strong_rand_bytes(?BYTES))
    end.

ids(Bytes) ->
    [erlmcp_base64url:encode(One) || <<One:?BYTES/binary>> <= Bytes].
