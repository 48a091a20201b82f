-module(erlmcp_test_faked_clock).
-moduledoc """
Clocks of programs that are wrong, or jump, by libfaketime (`scripts/faketime.sh`). A file has the
difference to the machine's clock. The monotonic clock is always the machine's, but Erlang's follows
the other one by one percent of the time that passes.
""".

-compile(nowarn_missing_spec_documented).

-export([install/0, env/1, set/2]).

%% Makes the library ready. Returns `none` where it is not to be had.
install() ->
    Script = filename:join([erlmcp_test_page:root(), "scripts", "faketime.sh"]),
    case string:trim(os:cmd(Script ++ " 2>/dev/null")) of
        "" -> none;
        Path -> Path
    end.

%% The environment of a program whose clock the file has. The clock is right at first.
env(File) ->
    _ = filelib:is_regular(File) orelse set(File, 0),
    [{"LD_PRELOAD", install()}, {"FAKETIME_TIMESTAMP_FILE", File},
     {"FAKETIME_DONT_FAKE_MONOTONIC", "1"}, {"FAKETIME_CACHE_DURATION", "1"},
     {"NO_FAKE_STAT", "1"}].

%% The clock is ahead by so many seconds from now on, or a second later. The program reads the whole
%% file or none of it.
set(File, Seconds) ->
    ok = filelib:ensure_dir(File),
    New = File ++ ".new",
    Sign = case Seconds < 0 of true -> ""; false -> "+" end,
    ok = file:write_file(New, [Sign, integer_to_list(Seconds), $\n]),
    file:rename(New, File).
