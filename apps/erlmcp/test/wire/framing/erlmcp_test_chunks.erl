-module(erlmcp_test_chunks).
-moduledoc """
Readers of bytes that come in chunks, `m:erlmcp_line` and `m:erlmcp_sse_reader`: the same chunks for
each, and its time and memory.
""".

-include_lib("stdlib/include/assert.hrl").

-export([feed/3, push/3, cut/2, is_linear/2, is_compact/3]).

%% Times that both are measured until they are not linear.
-define(TRIES, 5).

-doc "Returns what a reader with the bound `Max` reads from each chunk.".
-spec feed(module(), pos_integer(), [binary()]) -> [[term()]].
feed(Reader, Max, Chunks) ->
    {Read, _} = lists:mapfoldl(fun Reader:push/2, Reader:new(Max), Chunks),
    Read.

-doc "Returns the state of a reader behind the chunks.".
-spec push(module(), pos_integer(), [binary()]) -> term().
push(Reader, Max, Chunks) ->
    lists:foldl(fun(Chunk, State) -> element(2, Reader:push(Chunk, State)) end, Reader:new(Max),
                Chunks).

-doc "Cuts bytes into chunks of these sizes, again and again.".
-spec cut(binary(), [pos_integer()]) -> [binary()].
cut(Bytes, [Size | Sizes]) when byte_size(Bytes) > Size ->
    <<Chunk:Size/binary, Rest/binary>> = Bytes,
    [Chunk | cut(Rest, Sizes ++ [Size])];
cut(Bytes, _) ->
    [Bytes].

-doc """
Asserts that four times the bytes take less than eight times as long, and 100 milliseconds. Linear
work takes four times as long, and quadratic work sixteen times. The time is the processor's, which
is slower now and then while the machine has other work. So both are measured again, up to five
times in all, until the least time of each is near enough.
""".
-spec is_linear(module(), [{Chunk :: binary(), Count :: pos_integer()}]) -> ok.
is_linear(Reader, Kinds) ->
    lists:foreach(fun({Chunk, Count}) ->
        Run = fun(Factor) ->
            Chunks = lists:duplicate(Factor * Count, Chunk),
            {Before, _} = statistics(runtime),
            _ = [push(Reader, 1 bsl 24, Chunks) || _ <- lists:seq(1, 25)],
            {After, _} = statistics(runtime),
            After - Before
        end,
        ?assertMatch({linear, _}, judged(Run, ?TRIES, []), Chunk)
    end, Kinds).

judged(_, 0, Times) ->
    {not_linear, Times};
judged(Run, Left, Before) ->
    Once = Run(1),
    Fourfold = Run(4),
    Times = [{Once, Fourfold} | Before],
    {Onces, Fourfolds} = lists:unzip(Times),
    case lists:min(Fourfolds) < 8 * lists:min(Onces) + 100 of
        true -> {linear, Times};
        false -> judged(Run, Left - 1, Times)
    end.

-doc """
Asserts that a reader keeps many single bytes, after the chunks `First`, in less than three times
their number. A list of chunks would take many bytes for each of them. `Check` then gets the number
of bytes and the state.
""".
-spec is_compact(module(), First :: [binary()],
                 fun((Size :: pos_integer(), State :: term()) -> term())) -> ok.
is_compact(Reader, First, Check) ->
    Size = 1 bsl 17,
    Self = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        State = push(Reader, Size, First ++ lists:duplicate(Size, ~"x")),
        garbage_collect(),
        {memory, Heap} = process_info(self(), memory),
        {binary, Binaries} = process_info(self(), binary),
        Self ! {self(), Heap + lists:sum([Bytes || {_, Bytes, _} <- Binaries])},
        Check(Size, State)
    end),
    receive {Pid, Memory} -> ?assert(Memory < 3 * Size, Memory) end,
    receive {'DOWN', Monitor, process, Pid, Reason} -> ?assertEqual(normal, Reason) end,
    ok.
