-module(erlmcp_load_counts).
-moduledoc "What all connections of a load count together.".

-export([new/0, add/3, all/1]).

-export_type([counts/0, name/0]).

-opaque counts() :: counters:counters_ref().

-doc """
Of the requests that are measured: `sent`, and what became of them: `answered`, `refused`, `failed`,
`wrong`; `unsent` were due and no connection was free. `late` replies came after their request had
failed, `strays` are replies to nothing. `messages` answer nothing and need not. `opened` and
`open_failed` are attempts to open a connection, `lost` those that ended unasked, `connections`
those that are open, `warm` the answers before it is measured.
""".
-type name() :: sent | answered | refused | failed | wrong | unsent | late | strays | messages
              | opened | open_failed | lost | connections | bytes_in | bytes_out
              | warm.

-doc "Nothing yet.".
-spec new() -> counts().
new() ->
    counters:new(length(names()), [write_concurrency]).

-doc "Counts so many more.".
-spec add(counts(), name(), integer()) -> ok.
add(Counts, Name, Number) ->
    counters:add(Counts, index(Name), Number).

-doc "How many there are of each.".
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
