-module(erlmcp_test_suite).
-moduledoc "Functions that suites share: cases for `all/0`, and entries of `Config`.".

-export([cases/1, server/1, transport/1, peer/1, issuer/1, watch/1]).

-doc """
Returns the cases of a suite: its exports of one argument, except those that common_test calls by
name.
""".
-spec cases(module()) -> [atom()].
cases(Suite) ->
    [Case || {Case, 1} <- Suite:module_info(exports),
             not lists:member(Case, [module_info, init_per_suite, end_per_suite])].

-doc "Returns the server of a case, which `init_per_testcase/2` has started.".
-spec server([tuple()]) -> erlmcp_test_http:server().
server(Config) ->
    proplists:get_value(server, Config).

-doc "Returns the transport of a case, which `init_per_group/2` has named.".
-spec transport([tuple()]) -> atom().
transport(Config) ->
    proplists:get_value(transport, Config).

-doc "Returns the HTTP servers that a client of the case asks, see `m:erlmcp_test_oauth`.".
-spec peer([tuple()]) -> term().
peer(Config) ->
    proplists:get_value(peer, Config).

-doc "Returns the issuer of a case's tokens.".
-spec issuer([tuple()]) -> term().
issuer(Config) ->
    proplists:get_value(issuer, Config).

-doc "Returns the watch over what a case costs.".
-spec watch([tuple()]) -> term().
watch(Config) ->
    proplists:get_value(watch, Config).
