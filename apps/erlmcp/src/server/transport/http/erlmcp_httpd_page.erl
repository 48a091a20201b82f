-module(erlmcp_httpd_page).
-moduledoc """
Handles a request for a page (`m:erlmcp_page`), for `m:erlmcp_httpd_stream`. A page runs in a
process of its own, linked to the connection, with a heap bound. It has a deadline for its response,
or for the beginning of its stream. No page passes the gate, so that pages are answered while the
server refuses calls. In place of the gate, a listener bounds the number of its pages that run at
once.

Internal.
""".

-export([new/1, find/2, asks_identity/1]).
-export([init/4, data/3, info/3, terminate/1]).

-export_type([pages/0, found/0, request/0, state/0]).

%% The most bytes of a request's body.
-define(BODY, 65_536).
%% The pages of a listener that run at once.
-define(MOST_RUNNING, 100).
%% Milliseconds until a page has to answer, or to begin its stream. It is `call_timeout_ms` if that
%% is less.
-define(DEADLINE, 10_000).
%% Milliseconds that a page has to end by itself when its request has ended.
-define(SHUTDOWN, 1_000).
%% Milliseconds until a client may try again whose page was one too many.
-define(RETRY, 1_000).
%% Headers that only the listener sets.
-define(OWN, [~"connection", ~"content-length", ~"keep-alive", ~"proxy-connection", ~"te",
              ~"trailer", ~"transfer-encoding", ~"upgrade"]).

-doc "The pages of a listener, the longest path first, and the table of those that run.".
-opaque pages() :: none | {[{Path :: binary(), erlmcp_page:page()}, ...], running()}.
-type running() :: ets:table().
-doc "The page at the path of a request, with the rest of the path behind that of the page.".
-opaque found() :: #{page := erlmcp_page:page(), below := binary(), running := running()}.
-doc """
A page, the request for it, and the identity of the client. `extra` has further headers for the
answer.
""".
-type request() :: #{
    found := found(), request := cowboy_req:req(), identity := erlmcp_auth:identity(),
    extra := #{binary() => iodata()}
}.

-record(page, {
    asked :: request(),
    owner :: erlmcp_call:owner(),
    config :: erlmcp_httpd:config(),
    body = none :: none | erlmcp_httpd_body:body(),
    %% the process of the page, and the timer of its deadline
    pid = none :: none | pid(),
    timer = none :: none | reference(),
    streaming = false :: boolean(),
    expiry = none :: erlmcp_httpd_auth:expiry(),
    %% whether bytes wait for the client of HTTP/2 to read, and whether the page has to be told when
    %% none do
    full = false :: boolean(),
    owing = false :: boolean()
}).

-opaque state() :: #page{}.

-doc """
Returns the pages of a listener with `Options`, or `none` if it has no page. The table of running
pages belongs to the calling process.
""".
-spec new(Options :: map()) -> pages().
new(Options) ->
    case maps:to_list(erlmcp_listen_options:pages(Options)) of
        [] -> none;
        Pages ->
            Longest = fun({One, _}, {Other, _}) -> byte_size(One) >= byte_size(Other) end,
            {lists:sort(Longest, Pages), ets:new(?MODULE, [public])}
    end.

-doc """
Finds the page whose path is `Path` or a parent of it; of several, the one with the longest path. A
page at `/` is found for that path alone. Returns `none` if there is no page.
""".
-spec find(Path :: binary(), pages()) -> {ok, found()} | none.
find(_, none) ->
    none;
find(Path, {Pages, Running}) ->
    find(Path, Pages, Running).

find(_, [], _) ->
    none;
find(Path, [{Own, Page} | Pages], Running) ->
    Size = byte_size(Own),
    case Path of
        <<Own:Size/binary>> -> {ok, #{page => Page, below => <<>>, running => Running}};
        <<Own:Size/binary, $/, _/binary>> when Own =/= ~"/" ->
            <<_:Size/binary, Below/binary>> = Path,
            {ok, #{page => Page, below => Below, running => Running}};
        _ -> find(Path, Pages, Running)
    end.

-doc "Returns `true` if a page's option `authenticate` is `true`.".
-spec asks_identity(found()) -> boolean().
asks_identity(#{page := {_, _, #{authenticate := true}}}) -> true;
asks_identity(_) -> false.

-doc """
Begins to handle a request for a page. Refuses a method other than GET, HEAD and POST, and a body
whose announced length is more than 65,536 bytes.
""".
-spec init(request(), erlmcp_call:owner(), cowboy_req:req(), erlmcp_httpd:config()) ->
    {cowboy_stream:commands(), state()}.
init(#{request := #{method := Method}} = Asked, Owner, Received, Config) ->
    Page = #page{asked = Asked, owner = Owner, config = Config#{message_bytes := ?BODY}},
    case Received of
        _ when Method =/= ~"GET", Method =/= ~"HEAD", Method =/= ~"POST" ->
            refuse(erlmcp_refusal:new(protocol_error, [~"a page is for GET, HEAD and POST; got ",
                                                       erlmcp_printable:quoted(Method)],
                                      #{status => 405}),
                   #{~"allow" => ~"GET, HEAD, POST"}, Received, Page);
        #{body_length := Length} when is_integer(Length), Length > ?BODY ->
            refuse(erlmcp_refusal:new(message_too_large, ~"the body is too large for a page",
                                      #{limit => ?BODY, observed => Length}),
                   #{}, Received, Page);
        _ ->
            #page{config = Limits} = Page,
            received(erlmcp_httpd_body:read(Received, Owner, Limits), Page)
    end.

refuse(Refusal, Headers, Received, #page{owner = Owner, config = Config} = Page) ->
    received(erlmcp_httpd_body:refuse(Refusal, Headers, Received, Owner, Config), Page).

-doc "Handles the part of the request's body that has arrived.".
-spec data(cowboy_stream:fin(), binary(), state()) -> {cowboy_stream:commands(), state()}.
data(_, _, #page{body = none} = Page) ->
    {[], Page};
data(IsFin, Data, #page{body = Body} = Page) ->
    received(erlmcp_httpd_body:data(IsFin, Data, Body), Page).

received({more, Commands, Body}, Page) -> {Commands, Page#page{body = Body}};
received({whole, Bytes}, Page) -> start(Bytes, Page#page{body = none});
received({ended, Commands}, Page) -> {Commands, Page#page{body = none}};
received({refused, Refusal, Headers}, Page) ->
    {erlmcp_httpd_response:refuse(Refusal, undefined, Headers), Page#page{body = none}}.

start(Body, #page{asked = Asked, owner = {Owner, Tag}, config = #{instance := Instance}} = Page) ->
    #{found := #{page := Given, running := Running}} = Asked,
    #{key := Key} = Instance,
    Request = request(Asked, Body, Key),
    Pid = erlmcp_call:start_process(
        fun() -> ended_with(answer(Given, Running, Request, {Owner, Tag}, Key), Owner) end,
        Instance),
    Timer = erlang:send_after(deadline(Page), Owner, {Tag, {page, Pid, deadline}}),
    {[{spawn, Pid, ?SHUTDOWN}], Page#page{pid = Pid, timer = Timer}}.

deadline(#page{config = #{instance := #{limits := #{call_timeout_ms := Longest}}}}) ->
    min(?DEADLINE, Longest).

request(#{found := #{below := Below}, request := Received, identity := Identity}, Body, Key) ->
    #{qs := Query} = Received,
    #{principal := Principal} = Identity,
    (maps:with([method, path, headers, scheme, host, port, peer], Received))#{
        query => Query, below => Below, body => Body, server => erlmcp_log:server(Key),
        principal => Principal}.

%% In the process of the page. It sends the whole response as an exit signal, and ends. If it has a
%% stream, it sends the connection one piece after the other, and goes on when the client has taken
%% the pieces before.

ended_with(Outcome, Owner) ->
    exit(Owner, {?MODULE, Outcome}),
    unlink(Owner).

answer(Given, Running, Request, Owner, Key) ->
    case take_number(1, Running) of
        ok -> handled(Given, Request, Owner, Key);
        full -> full
    end.

%% A number belongs to a process, and is free again when that process has ended, however it has.
take_number(Number, _) when Number > ?MOST_RUNNING ->
    full;
take_number(Number, Running) ->
    case ets:insert_new(Running, {Number, self()}) of
        true ->
            ok;
        false ->
            taken(ets:lookup(Running, Number), Number, Running)
    end.

%% Another page may have found that the holder has ended, and deleted the row.
taken([{_, Holder} = Row], Number, Running) ->
    case is_process_alive(Holder) of
        true ->
            take_number(Number + 1, Running);
        false ->
            true = ets:delete_object(Running, Row),
            take_number(Number, Running)
    end;
taken([], Number, Running) ->
    take_number(Number, Running).

%% The page may have options, too.
handled(Given, #{method := Method} = Request, Owner, Key) ->
    Page = element(1, Given),
    try
        responded(Page:handle(Request, element(2, Given)), Method, Owner)
    catch
        exit:{shutdown, _} = Reason ->
            exit(Reason);
        Class:Reason:Stack ->
            #{path := Path} = Request,
            Outline = erlmcp_incident:outline(Reason, Stack),
            {failed, erlmcp_incident:log(Outline#{what => page_crashed, path => Path,
                                                  class => Class}, Key)}
    end.

responded({Status, Headers, Body}, _, _) when is_integer(Status), Status >= 200, Status =< 599 ->
    {respond, Status, checked(Headers), iolist_to_binary(Body)};
responded({stream, Headers, Fun}, ~"HEAD", _) when is_function(Fun, 1) ->
    {head, checked(Headers)};
responded({stream, Headers, Fun}, _, {Owner, Tag}) when is_function(Fun, 1) ->
    Page = self(),
    Owner ! {Tag, {page, Page, {stream, checked(Headers)}}},
    Watch = monitor(process, Owner),
    _ = Fun(fun(Data) when Page =:= self() ->
                Owner ! {Tag, {page, Page, {data, iolist_to_binary(Data)}}},
                written(Watch)
            end),
    ended.

written(Watch) ->
    receive
        {?MODULE, written} -> ok;
        {'DOWN', Watch, process, _, _} -> exit({shutdown, closed})
    end.

%% The bytes of a header may come from a client. A line end in one of them would begin another
%% header, or another response.
checked(Headers) ->
    #{checked_name(Name) => checked_value(Value) || Name := Value <- Headers}.

checked_name(Name) ->
    Own = lists:member(Name, ?OWN),
    case re:run(Name, ~"^[!#$%&'*+.^_`|~0-9a-z-]+$", [{capture, none}, dollar_endonly]) of
        match when not Own -> Name;
        _ -> error({not_a_header_of_a_page, Name})
    end.

checked_value(Value) ->
    Bytes = iolist_to_binary(Value),
    case re:run(Bytes, ~"[\\x00-\\x08\\x0a-\\x1f\\x7f]", [{capture, none}]) of
        nomatch -> Bytes;
        match -> error({not_a_value_of_a_header, Bytes})
    end.

%% In the process of the connection.

-doc "Handles a message that the request's stream is sent.".
-spec info(cowboy_stream:streamid(), term(), state()) -> {cowboy_stream:commands(), state()}.
info(_, {page, Pid, {stream, Headers}}, #page{pid = Pid} = Page) ->
    #page{asked = #{identity := Identity}, owner = {_, Tag} = Owner} = Page,
    Expiry = erlmcp_httpd_auth:expire(Identity, Owner),
    ok = erlmcp_httpd_http2:stream_lasts(Tag),
    {[{headers, 200, (with_defaults(Headers))#{~"date" => cowboy_clock:rfc1123()}}],
     (in_time(Page))#page{streaming = true, expiry = Expiry}};
info(StreamId, {page, Pid, {data, Bytes}}, #page{pid = Pid} = Page) ->
    %% Handled when the bytes have been written.
    self() ! {{self(), StreamId}, {page, Pid, written}},
    {[{data, nofin, Bytes}], Page};
info(_, {page, Pid, written}, #page{pid = Pid, full = true} = Page) ->
    {[], Page#page{owing = true}};
info(_, {page, Pid, written}, #page{pid = Pid} = Page) ->
    Pid ! {?MODULE, written},
    {[], Page};
%% Bytes wait for the client to read them (`m:erlmcp_httpd_backpressure`).
info(_, {alarm, _, on}, Page) ->
    {[], Page#page{full = true}};
info(StreamId, {alarm, _, off}, #page{owing = true, pid = Pid} = Page) ->
    info(StreamId, {page, Pid, written}, Page#page{full = false, owing = false});
info(_, {alarm, _, off}, Page) ->
    {[], Page#page{full = false}};
info(_, {'EXIT', Pid, {?MODULE, Outcome}}, #page{pid = Pid} = Page) ->
    {outcome(Outcome, Page), ended(Page)};
info(_, {'EXIT', Pid, Reason}, #page{pid = Pid} = Page) ->
    Incident = incident(page_died, #{reason => erlmcp_incident:outline(Reason)}, Page),
    {outcome({failed, Incident}, Page), ended(Page)};
info(_, {page, Pid, deadline}, #page{pid = Pid, streaming = false} = Page) ->
    exit(Pid, kill),
    Deadline = deadline(Page),
    Incident = incident(page_timed_out, #{limit => Deadline}, Page),
    Refusal = erlmcp_refusal:new(timeout, ~"the page passed its deadline and was ended",
                                 #{limit => Deadline, incident => Incident}),
    {erlmcp_httpd_response:refuse(Refusal), ended(Page)};
info(_, {identity, expired}, #page{streaming = true} = Page) ->
    {[{data, fin, <<>>}, stop], ended(Page)};
%% The server ends, and a stream does not end by itself.
info(_, closing, #page{streaming = true} = Page) ->
    {[{data, fin, <<>>}, stop], ended(Page)};
info(_, receive_timeout, #page{body = Body} = Page) when Body =/= none ->
    received(erlmcp_httpd_body:late(Body), Page);
info(_, broken_body, #page{body = Body} = Page) when Body =/= none ->
    received(erlmcp_httpd_body:broken(Body), Page);
info(_, {unfinished, Verdict}, #page{body = Body} = Page) when Body =/= none ->
    received(erlmcp_httpd_body:verdict(Verdict, Body), Page);
info(_, _, Page) ->
    {[], Page}.

outcome(ended, _) ->
    [{data, fin, <<>>}, stop];
outcome({respond, Status, Headers, Body}, _) ->
    respond(Status, with_defaults(Headers), Body);
outcome({head, Headers}, _) ->
    [{response, 200, (with_defaults(Headers))#{~"date" => cowboy_clock:rfc1123()}, <<>>}, stop];
outcome(full, _) ->
    erlmcp_httpd_response:refuse(
        erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many pages at once",
                           #{status => 503, limit => ?MOST_RUNNING, retry_after_ms => ?RETRY}));
outcome({failed, _}, #page{streaming = true}) ->
    [{internal_error, page_failed, 'The stream of a page has failed.'}];
outcome({failed, Incident}, _) ->
    erlmcp_httpd_response:refuse(
        erlmcp_refusal:new(internal_error, ~"internal error", #{incident => Incident})).

%% RFC 9110, 15.4.5: the length of a 304 would be that of the whole response.
respond(304, Headers, _) ->
    [{response, 304, Headers#{~"date" => cowboy_clock:rfc1123()}, <<>>}, stop];
respond(Status, Headers, Body) ->
    erlmcp_httpd_response:respond(Status, Headers, Body).

%% Browsers neither store a page, which changes with the server, nor guess its type.
with_defaults(Headers) ->
    maps:merge(#{~"cache-control" => ~"no-store", ~"x-content-type-options" => ~"nosniff"},
               Headers).

%% The connection's process must not wait for the log.
incident(What, Reason, #page{asked = #{request := #{path := Path}}, config = Config}) ->
    #{instance := #{key := Key}} = Config,
    erlmcp_incident:log_apart(Reason#{what => What, path => Path}, Key).

ended(Page) ->
    (in_time(Page))#page{pid = none}.

in_time(#page{timer = none} = Page) ->
    Page;
in_time(#page{timer = Timer} = Page) ->
    _ = erlang:cancel_timer(Timer),
    Page#page{timer = none}.

-doc "Ends the request. The page's process gets an exit signal from the connection's process.".
-spec terminate(state()) -> ok.
terminate(#page{body = Body, owner = {_, Tag}, expiry = Expiry} = Page) ->
    _ = in_time(Page),
    ok = erlmcp_httpd_auth:forget_expiry(Expiry),
    ok = erlmcp_httpd_http2:stream_ended(Tag),
    erlmcp_httpd_body:forget(Body).
