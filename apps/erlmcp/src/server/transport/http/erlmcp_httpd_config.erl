-module(erlmcp_httpd_config).
-moduledoc "What the requests of a listener share: its handlers give it to each other. Pure.".

-export([new/2]).

-export_type([config/0]).

-doc "What its requests share, and what they are given of who asks.".
-type config() :: #{
    instance := erlmcp_instance:instance(),
    calls := erlmcp_instance:of_calls(),
    path := binary(),
    http1 := erlmcp_httpd_http1_message:patterns(),
    %% of one request, by the door
    identity => erlmcp_auth:identity(),
    insufficient => fun(([erlmcp_scope:scope(), ...]) -> #{binary() => iodata()}),
    %% of one connection, where its listener trusts proxies: whether it is many clients'
    proxied => boolean(),
    message_bytes := pos_integer(),
    receive_timeout_ms := pos_integer()
}.

-doc "The configuration of a listener with these options.".
-spec new(map(), erlmcp_instance:instance()) -> config().
new(Options, #{limits := Limits} = Instance) ->
    #{message_bytes := Max, receive_timeout_ms := Timeout} = Limits,
    Path = maps:get(path, Options, ~"/mcp"),
    #{instance => Instance, calls => erlmcp_instance:of_calls(Instance),
      path => Path, http1 => erlmcp_httpd_http1_message:patterns(),
      message_bytes => Max, receive_timeout_ms => Timeout}.
