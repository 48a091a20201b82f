-module(erlmcp_httpd_http1_stream).
-moduledoc """
The stream of a plain request (`m:erlmcp_httpd_http1`): its end, and what is said in the log where
its handler fails, as cowboy says it.

Internal.
""".

-export([terminate/3, failed/4]).

-export_type([stream/0]).

-doc "Its number, and its handler with its state.".
-type stream() :: {cowboy_stream:streamid(), cowboy_stream | erlmcp_httpd_route, State :: term()}.

-doc "Tells a stream, if there is one, that it is over.".
-spec terminate(cowboy_stream:reason(), stream() | none, cowboy:opts()) -> ok.
terminate(_, none, _) ->
    ok;
terminate(Reason, {Id, Module, State}, Options) ->
    try Module:terminate(Id, Reason, State) of
        _ -> ok
    catch
        Class:Why:Stacktrace ->
            failed(terminate, [Id, Reason, State], {Class, Why, Stacktrace}, Options)
    end.

-doc "Says that a handler's callback has failed.".
-spec failed(init | info | terminate, Arguments :: [term()],
             {error | exit | throw, Reason :: term(), Stacktrace :: list()}, cowboy:opts()) -> ok.
failed(Callback, Arguments, {Class, Reason, Stacktrace}, Options) ->
    Log = cowboy_stream:make_error_log(Callback, Arguments, Class, Reason, Stacktrace),
    _ = cowboy:log(Log, Options),
    ok.
