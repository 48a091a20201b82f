-module(erlmcp_bench_fixture).
-moduledoc """
The handler of measured servers, and the base of `m:erlmcp_bench_quick_fixture`. Some of its tools
cost almost nothing; others compute, wait, hold memory, return large answers, or fail. The server
also has a prompt and a resource.
""".

-behaviour(erlmcp_server).

-export([server/0, tools/0, prompts/0, resources/0]).
-export([call_tool/3, get_prompt/3, read_resource/3]).

-doc false.
server() ->
    #{name => ~"erlmcp-bench", version => ~"0.1.0"}.

-doc false.
tools() ->
    [#{name => ~"echo", description => ~"Says it again", input_schema => #{text => string}},
     #{name => ~"add", description => ~"Adds two numbers",
       input_schema => #{a => number, b => number}},
     #{name => ~"burn", description => ~"Computes for so many microseconds",
       input_schema => #{us => {integer, #{minimum => 0, maximum => 10_000_000}}}},
     #{name => ~"sleep", description => ~"Waits for so many milliseconds",
       input_schema => #{ms => {integer, #{minimum => 0, maximum => 60_000}}}},
     #{name => ~"large", description => ~"Answers so many bytes",
       input_schema => #{bytes => {integer, #{minimum => 0, maximum => 67_108_864}}}},
     #{name => ~"hold", description => ~"Holds so many bytes of memory for so many milliseconds",
       input_schema => #{bytes => {integer, #{minimum => 0}},
                         ms => {integer, #{minimum => 0, maximum => 60_000}}}},
     #{name => ~"crash", description => ~"Fails"}].

-doc false.
prompts() ->
    [#{name => ~"test_prompt", description => ~"A prompt"}].

-doc false.
resources() ->
    [#{uri => ~"file://test.txt", name => ~"test.txt", mime_type => ~"text/plain"}].

-doc false.
call_tool(~"echo", #{~"text" := Text}, _) -> Text;
call_tool(~"add", #{~"a" := A, ~"b" := B}, _) -> iolist_to_binary(io_lib:format("~w", [A + B]));
call_tool(~"burn", #{~"us" := Microseconds}, _) -> burned(Microseconds);
call_tool(~"sleep", #{~"ms" := Milliseconds}, _) -> slept(Milliseconds);
call_tool(~"large", #{~"bytes" := Bytes}, _) -> filled(Bytes);
call_tool(~"hold", #{~"bytes" := Bytes, ~"ms" := Milliseconds}, _) ->
    Held = filled(Bytes),
    Done = slept(Milliseconds),
    %% This use keeps the binary in memory until here.
    Bytes = byte_size(Held),
    Done;
call_tool(~"crash", _, _) -> error(asked_to_crash).

-doc false.
get_prompt(~"test_prompt", _, _) -> ~"A prompt of the benchmarks.".

-doc false.
read_resource(~"file://test.txt", _, _) -> ~"A resource of the benchmarks.".

%% Copying many single bytes would cost more than all other work with them.
filled(Bytes) when Bytes =< 1_024 ->
    binary:copy(~"x", Bytes);
filled(Bytes) ->
    Part = filled((Bytes + 63) div 64),
    binary:part(binary:copy(Part, 64), 0, Bytes).

slept(Milliseconds) ->
    receive after Milliseconds -> ~"done" end.

%% Processor time, not wall time: waiting for a scheduler is not computing.
burned(Microseconds) ->
    ok = turn(Microseconds * turns_in_a_second() div 1_000_000),
    ~"done".

turn(N) when N =< 0 -> ok;
turn(N) -> _ = erlang:phash2({turn, N}), turn(N - 1).

%% Returns the turns of the fastest of several rounds, the one that was disturbed least.
turns_in_a_second() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Turns = 20_000,
            Fastest = lists:min([element(1, timer:tc(fun() -> turn(Turns) end))
                                 || _ <- lists:seq(1, 30)]),
            Rate = Turns * 1_000_000 div max(1, Fastest),
            ok = persistent_term:put(?MODULE, Rate),
            Rate;
        Rate ->
            Rate
    end.
