-module(erlmcp_test_fault).
-moduledoc "A fault for the suites, whose options say what it does.".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1, teardown/1]).

id() -> ~"chaos_of_a_suite".

title() -> ~"what a suite wants".

needs() -> [].

bounds() -> #{code => 1066, detect_ms => 60_000, recover_ms => 60_000, load => undisturbed}.

harms() -> [malformed].

setup(#{setup := {not_run, _} = NotRun}) -> NotRun;
setup(#{setup := Setup, test := Test}) -> {ok, Setup#{private => Test}}.

run(#{options := #{run := Run}} = Context) -> Run(Context).

teardown(Test) ->
    Test ! torn_down,
    ok.
