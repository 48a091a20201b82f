-module(erlmcp_bench_process).
-moduledoc """
Reads from Linux's `/proc` what an operating system process has used, without its children.
`cpu_us/1` and `rss_bytes/1` return `undefined` if there is no such process, or no `/proc`.
""".

-export([self/0, cpu_us/1, rss_bytes/1]).

-doc "The id of a process in the operating system, as an integer.".
-type os_pid() :: pos_integer().

%% The unit of the kernel's counts in /proc/PID/stat on all our architectures: hundredths of a
%% second.
-define(TICK_US, 10_000).

-doc "Returns the operating system's id of this node.".
-spec self() -> os_pid().
self() ->
    list_to_integer(os:getpid()).

-doc """
Returns the processor time of all threads of a process, in user and kernel mode, in microseconds.
The time grows in steps of 10 ms. Returns `undefined` if there is no such process, or no `/proc`.
""".
-spec cpu_us(os_pid()) -> non_neg_integer() | undefined.
cpu_us(OsPid) ->
    maybe
        {ok, Stat} ?= read(OsPid, "stat"),
        %% The program's name comes second, in parentheses, and may contain anything.
        [_ | _] = Ends = binary:matches(Stat, ~")"),
        {End, _} = lists:last(Ends),
        <<_:End/binary, ")", Fields/binary>> = Stat,
        Words = binary:split(Fields, ~" ", [global, trim_all]),
        %% The 14th and 15th field of all.
        [User, System] = lists:sublist(Words, 12, 2),
        (binary_to_integer(User) + binary_to_integer(System)) * ?TICK_US
    end.

-doc """
Returns the resident memory of a process, in bytes. Returns `undefined` if there is no such process,
or no `/proc`. Also returns `undefined` for a process that has ended, and whose exit status its
parent has not read yet.
""".
-spec rss_bytes(os_pid()) -> non_neg_integer() | undefined.
rss_bytes(OsPid) ->
    maybe
        {ok, Status} ?= read(OsPid, "status"),
        Lines = [binary:split(Line, [~" ", ~"\t"], [global, trim_all])
                 || Line <- binary:split(Status, ~"\n", [global])],
        case [Number || [~"VmRSS:", Number, ~"kB"] <- Lines] of
            [Number] -> binary_to_integer(Number) * 1024;
            %% The process has ended, and its parent has not read its status yet.
            [] -> undefined
        end
    end.

read(OsPid, Name) ->
    case file:read_file(filename:join(["/proc", integer_to_list(OsPid), Name]), [raw]) of
        {ok, Bytes} -> {ok, Bytes};
        {error, _} -> undefined
    end.
