-module(erlmcp_load_counts).
-moduledoc "Counters that all connections of a load share.".

-export([new/0, add/3, all/1]).

-export_type([counts/0, name/0]).

-opaque counts() :: counters:counters_ref().

-doc """
Counters of a load.

- Of measured requests: `sent` ones, and their outcomes `answered`, `refused`, `failed` and `wrong`.
  `unsent` requests were due, but no connection was free before their timeout or the end of the
  load.
- Of messages: `late` replies came after their request had timed out, `strays` answer no request,
  and `messages` are no replies, such as notifications.
- Of connections: `opened` and `open_failed` attempts to open one, `lost` connections that ended
  unexpectedly, and `connections` that are open. `bytes_in` and `bytes_out` are received and sent on
  them, without the bytes that open and end their sessions.
- `warm` answers belong to requests that were due before the measured time.
""".
-type name() :: sent | answered | refused | failed | wrong | unsent | late | strays | messages
              | opened | open_failed | lost | connections | bytes_in | bytes_out
              | warm.

-doc "Returns counters that are all zero.".
-spec new() -> counts().
new() ->
    counters:new(length(names()), [write_concurrency]).

-doc "Adds `Number` to the counter `Name`. A negative number lowers it.".
-spec add(counts(), Name :: name(), Number :: integer()) -> ok.
add(Counts, Name, Number) ->
    counters:add(Counts, index(Name), Number).

-doc "Returns the values of all counters.".
-spec all(counts()) -> #{name() => integer()}.
all(Counts) ->
    #{Name => counters:get(Counts, index(Name)) || Name <- names()}.

names() ->
    [sent, answered, refused, failed, wrong, unsent, late, strays, messages, opened, open_failed,
     lost, connections, bytes_in, bytes_out, warm].

index(sent) -> 1;
index(answered) -> 2;
index(refused) -> 3;
index(failed) -> 4;
index(wrong) -> 5;
index(unsent) -> 6;
index(late) -> 7;
index(strays) -> 8;
index(messages) -> 9;
index(opened) -> 10;
index(open_failed) -> 11;
index(lost) -> 12;
index(connections) -> 13;
index(bytes_in) -> 14;
index(bytes_out) -> 15;
index(warm) -> 16.
