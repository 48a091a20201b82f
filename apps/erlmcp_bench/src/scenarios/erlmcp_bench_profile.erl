-module(erlmcp_bench_profile).
-moduledoc "The client profiles of the load scenarios, as data. Pure.".

-export([all/0, find/1]).

-export_type([name/0, profile/0]).

-type name() :: normal | high_load | low_load | slow_client | message_bomber.
-doc """
The number of clients, the requests that each client sends in a second (`rate`), and the payload of
a request in bytes.
""".
-type profile() :: #{clients := pos_integer(), rate := number(), bytes := pos_integer()}.

-doc "Returns every profile.".
-spec all() -> [{name(), profile()}].
all() ->
    [{normal, #{clients => 25, rate => 100, bytes => 512}},
     {high_load, #{clients => 50, rate => 1_000, bytes => 2_048}},
     {low_load, #{clients => 10, rate => 10, bytes => 256}},
     {slow_client, #{clients => 5, rate => 1, bytes => 1_024}},
     {message_bomber, #{clients => 20, rate => 10_000, bytes => 128}}].

-doc "Returns the profile `Name`, or an error if there is none.".
-spec find(name()) -> {ok, profile()} | {error, {unknown_profile, term()}}.
find(Name) ->
    case lists:keyfind(Name, 1, all()) of
        {_, Profile} -> {ok, Profile};
        false -> {error, {unknown_profile, Name}}
    end.
