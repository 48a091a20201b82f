-module(spec_2026_07_28_mrtr_SUITE).
-moduledoc "Specification 2026-07-28, \"Multi Round-Trip Requests\", over HTTP and TCP.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([result_says_what_is_needed/1, state_is_optional/1, retry_completes/1,
         retry_goes_to_any_connection/1, prompts_and_resources_ask_too/1,
         other_requests_never_ask/1, handler_asks_again_and_again/1,
         other_requests_are_not_affected/1]).
-export([state_tells_nothing/1, changed_state_is_refused/1, state_is_of_its_request/1,
         state_expires/1, keys_rotate/1, keys_are_shared/1, own_keys_are_not_shared/1]).
-export([state_is_good_for_once/1, a_task_uses_a_state_once/1, of_racing_retries_one_goes_on/1,
         other_options_are_refused/1, used_states_are_bounded/1, used_states_of_one_are_bounded/1,
         expired_states_make_room/1]).
-export([extra_responses_are_ignored/1, missing_responses_are_asked_again/1,
         malformed_input_is_refused/1, undeclared_capabilities_are_named/1,
         declared_capabilities_are_enough/1, sampling_with_tools_needs_its_capability/1,
         strange_requests_are_not_sent/1]).
-export([sealed_opens_and_nothing_else/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/4, ask/3, ask/4, with_capabilities/2]).
-import(erlmcp_test_property, [holds/2]).

-define(REVISION, ~"2026-07-28").
-define(SECRET, ~"correct horse battery staple").
-define(INVALID, -32602).
-define(ALL, #{elicitation => #{form => #{}, url => #{}}, sampling => #{}, roots => #{}}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}, sealed_opens_and_nothing_else].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE) -- [sealed_opens_and_nothing_else],
    [{Transport, Cases} || Transport <- [http, tcp, sse]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_client:start(definitions(self()))} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

client(Config) ->
    client(server(Config), Config).

client(Server, Config) ->
    open(Server, transport(Config), ?REVISION, ?ALL).

%% Tells the test what each round was given.
definitions(Test) ->
    Tool = fun(Name, Handler) ->
        #{name => Name, handler => fun(Arguments, Context) ->
            Test ! {round, Arguments, maps:with([input, state], Context)},
            Handler(Arguments, Context)
        end}
    end,
    #{tools => [Tool(~"greet", fun greet/2), Tool(~"other", fun greet/2),
                Tool(~"once", once(#{once => true})), Tool(~"often", once(#{once => false})),
                (Tool(~"later", once(#{once => true})))#{task => optional},
                Tool(~"twice", once(#{twice => true})), Tool(~"both", once(#{once => yes})),
                Tool(~"count", fun count/2), Tool(~"stateless", fun stateless/2),
                Tool(~"fill", fun fill/2),
                Tool(~"echo", fun(#{~"text" := Text}, _) -> Text end)
                | [Tool(Name, fun(_, _) -> {input_required, #{~"it" => Request}, Name} end)
                   || {Name, Request} <- kinds()]],
      prompts => [#{name => ~"greet", handler => fun greet/2,
                    arguments => [#{name => ~"list"}, #{name => ~"asks"}],
                    complete => #{~"list" => [~"a"], ~"asks" => fun greet/2}}],
      resources => [#{uri => ~"test://greet", name => ~"greet", handler => fun greet/2},
                    #{uri => ~"test://other", name => ~"other", handler => fun greet/2}],
      resource_templates => [#{uri_template => ~"test://item/{id}", name => ~"item",
                               handler => fun greet/2}]}.

who() ->
    erlmcp_input:elicit(~"Who?", #{type => object, properties => #{name => #{type => string}}}).

greet(_, #{state := ?SECRET, input := #{~"who" := #{~"action" := ~"accept", ~"content" := C}}}) ->
    <<"Hello, ", (maps:get(~"name", C))/binary>>;
greet(_, _) ->
    {input_required, #{~"who" => who()}, ?SECRET}.

once(Options) ->
    fun(Arguments, Context) ->
        case greet(Arguments, Context) of
            {input_required, Requests, State} -> {input_required, Requests, State, Options};
            Greeting -> Greeting
        end
    end.

stateless(_, #{input := #{~"who" := #{~"content" := #{~"name" := Name}}}}) -> Name;
stateless(_, _) -> {input_required, #{~"who" => who()}}.

%% Asks five times.
count(_, #{state := {rounds, 5}}) -> ~"five";
count(_, #{state := {rounds, N}}) -> {input_required, #{~"who" => who()}, {rounds, N + 1}};
count(_, _) -> {input_required, #{~"who" => who()}, {rounds, 1}}.

%% Two answers are needed; what came is kept in the state.
fill(_, Context) ->
    Known = maps:merge(maps:get(state, Context, #{}), maps:get(input, Context, #{})),
    case maps:without(maps:keys(Known), #{~"a" => who(), ~"b" => who()}) of
        Missing when map_size(Missing) =:= 0 -> #{Name => A || Name := #{~"action" := A} <- Known};
        Missing -> {input_required, Missing, Known}
    end.

kinds() ->
    Hi = [#{role => user, content => erlmcp_content:text(~"Hi")}],
    [{~"form", who()}, {~"url", erlmcp_input:elicit_url(~"Go", ~"https://example.com/a", ~"e-1")},
     {~"sample", erlmcp_input:sample(#{messages => Hi, maxTokens => 10})},
     {~"tools", erlmcp_input:sample(#{messages => Hi, maxTokens => 10,
                                      tools => [#{name => ~"t",
                                                 inputSchema => #{type => object}}]})},
     {~"roots", erlmcp_input:roots()},
     {~"strange", #{method => ~"ping", params => #{}}},
     {~"unmade", #{~"method" => ~"roots/list"}}].

named(Name) ->
    #{name => Name, arguments => #{}}.

answers() ->
    #{who => #{action => accept, content => #{name => ~"Joe"}}}.

state(#{~"result" := #{~"resultType" := ~"input_required", ~"requestState" := State}}) -> State.

first_round(Client, Name) ->
    state(ask(Client, ~"tools/call", named(Name))).

retry(Client, Params, State) ->
    ask(Client, ~"tools/call", Params#{inputResponses => answers(), requestState => State}).

rounds() ->
    receive {round, Arguments, Given} -> [{Arguments, Given} | rounds()] after 0 -> [] end.

hello(#{~"result" := #{~"resultType" := ~"complete",
                       ~"content" := [#{~"text" := ~"Hello, Joe"}]}}) -> ok.

refused(#{~"error" := #{~"code" := ?INVALID, ~"message" := <<Field:12/binary, _/binary>>}}) ->
    ~"requestState" = Field.

%% "inputRequests values are request objects that MUST be one of ElicitRequest,
%% CreateMessageRequest, or ListRootsRequest"; "Servers MUST include at least one of inputRequests
%% or requestState in every InputRequiredResult response."
result_says_what_is_needed(Config) ->
    Client = client(Config),
    #{~"result" := Result} = ask(Client, 7, ~"tools/call", named(~"form")),
    200 = get(status),
    [~"_meta", ~"inputRequests", ~"requestState", ~"resultType"] =
        lists:sort(maps:keys(Result)),
    #{~"resultType" := ~"input_required",
      ~"_meta" := #{~"io.modelcontextprotocol/serverInfo" := #{~"name" := ~"test"}},
      ~"requestState" := State, ~"inputRequests" := Requests} = Result,
    true = is_binary(State),
    #{~"it" := #{~"method" := ~"elicitation/create",
                 ~"params" := #{~"message" := ~"Who?",
                                ~"requestedSchema" := #{~"type" := ~"object"}} = Params}} =
        Requests,
    %% "Form mode elicitation requests MUST either specify mode: "form" or omit the mode field".
    ~"form" = maps:get(~"mode", Params, ~"form"),
    %% "URL mode elicitation requests MUST specify mode: "url", a message, and" a url.
    #{~"result" := #{~"inputRequests" := #{~"it" := #{
        ~"method" := ~"elicitation/create",
        ~"params" := #{~"mode" := ~"url", ~"message" := ~"Go",
                       ~"url" := ~"https://example.com/a"} = Url}}}} =
        ask(Client, ~"tools/call", named(~"url")),
    %% The id is the older revision's, which tells its client of the end.
    3 = map_size(Url),
    #{~"result" := #{~"inputRequests" := #{~"it" := #{
        ~"method" := ~"sampling/createMessage",
        ~"params" := #{~"maxTokens" := 10, ~"messages" := [#{~"role" := ~"user"}]}}}}} =
        ask(Client, ~"tools/call", named(~"sample")),
    #{~"result" := #{~"inputRequests" := #{~"it" := #{~"method" := ~"roots/list"}}}} =
        ask(Client, ~"tools/call", named(~"roots")).

%% "The InputRequiredResult MAY include a requestState field": what was asked is in it, and the
%% answers are known by it, so that a handler is called once in each round. Answers that come
%% without one are taken for what the handler asks first.
state_is_optional(Config) ->
    Client = client(Config),
    #{~"result" := #{~"inputRequests" := #{~"who" := _}}} = First =
        ask(Client, ~"tools/call", named(~"stateless")),
    Joe = fun(Answer) ->
        #{~"result" := #{~"resultType" := ~"complete",
                         ~"content" := [#{~"text" := ~"Joe"}]}} = Answer
    end,
    Joe(retry(Client, named(~"stateless"), state(First))),
    2 = length(rounds()),
    Retry = (named(~"stateless"))#{inputResponses => answers()},
    Joe(ask(Client, ~"tools/call", Retry)),
    [{#{}, None}, {#{}, #{input := #{~"who" := _}}}] = rounds(),
    0 = map_size(None),
    %% One that asks for something else asks.
    _ = state(ask(Client, ~"tools/call",
                  (named(~"stateless"))#{inputResponses => #{other => #{action => accept}}})),
    %% They are good for one round: what is asked then, for the same, is asked.
    _ = state(ask(Client, ~"tools/call", (named(~"count"))#{inputResponses => answers()})).

%% "The JSON-RPC id MUST be different between the initial request and the retry, as they are
%% independent requests."
retry_completes(Config) ->
    Client = client(Config),
    #{~"id" := 1} = First = ask(Client, 1, ~"tools/call", named(~"greet")),
    Retry = (named(~"greet"))#{inputResponses => answers(), requestState => state(First)},
    #{~"id" := ~"two"} = Second = ask(Client, ~"two", ~"tools/call", Retry),
    hello(Second),
    Answers = #{~"who" => #{~"action" => ~"accept", ~"content" => #{~"name" => ~"Joe"}}},
    [{#{}, None}, {#{}, #{state := ?SECRET, input := Answers}}] = rounds(),
    0 = map_size(None).

%% "the server processing the retry does not need any information beyond what is directly present in
%% the retry request."
retry_goes_to_any_connection(Config) ->
    First = client(Config),
    State = first_round(First, ~"greet"),
    erlmcp_test_client:close(First),
    hello(retry(client(Config), named(~"greet"), State)).

%% "Servers MAY send InputRequiredResult responses on" prompts/get, resources/read, tools/call.
prompts_and_resources_ask_too(Config) ->
    Client = client(Config),
    [begin
         #{~"result" := #{~"inputRequests" := #{~"who" := #{}}}} = First =
             ask(Client, Method, Params),
         #{~"result" := #{~"resultType" := ~"complete"} = Result} =
             ask(Client, Method, Params#{inputResponses => answers(),
                                         requestState => state(First)}),
         #{Member := [#{}]} = Result
     end || {Method, Params, Member} <-
            [{~"prompts/get", #{name => ~"greet"}, ~"messages"},
             {~"resources/read", #{uri => ~"test://greet"}, ~"contents"},
             {~"resources/read", #{uri => ~"test://item/7"}, ~"contents"}]].

%% "Servers MUST NOT send InputRequiredResult responses on any other client requests."
other_requests_never_ask(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"greet"),
    [#{~"result" := #{~"resultType" := ~"complete"}} =
         ask(Client, Method, Params#{inputResponses => answers(), requestState => State})
     || {Method, Params} <-
            [{~"tools/list", #{}}, {~"prompts/list", #{}}, {~"resources/list", #{}},
             {~"resources/templates/list", #{}}, {~"server/discover", #{}},
             {~"completion/complete", complete(~"list")}]],
    #{~"error" := #{~"code" := -32603}} =
        ask(Client, ~"completion/complete", complete(~"asks")).

complete(Argument) ->
    #{ref => #{type => ~"ref/prompt", name => ~"greet"},
      argument => #{name => Argument, value => ~""}}.

%% "Servers MAY choose to return an InputRequiredResult on multiple attempts at the same request".
handler_asks_again_and_again(Config) ->
    Client = client(Config),
    Last = lists:foldl(fun(_, Previous) ->
        Next = state(retry(Client, named(~"count"), Previous)),
        true = Next =/= Previous,
        Next
    end, first_round(Client, ~"count"), lists:seq(2, 5)),
    #{~"result" := #{~"content" := [#{~"text" := ~"five"}]}} =
        retry(Client, named(~"count"), Last),
    [_, {rounds, 1}, {rounds, 2}, {rounds, 3}, {rounds, 4}, {rounds, 5}] =
        [maps:get(state, Given, none) || {_, Given} <- rounds()].

%% "Both the inputRequests and requestState fields affect only the client's retry of the original
%% request."
other_requests_are_not_affected(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"greet"),
    #{~"result" := #{~"resultType" := ~"complete", ~"content" := [#{~"text" := ~"beside"}]}} =
        ask(Client, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"beside"}}),
    %% The same call anew is a first round; so is another tool's.
    _ = first_round(Client, ~"greet"),
    _ = first_round(Client, ~"other"),
    [0, 0, 0, 0] = [map_size(Given) || {_, Given} <- rounds()],
    hello(retry(Client, named(~"greet"), State)).

%% A state may come again, unless its handler says that it may not. What is wrong with the answers
%% can be mended before.
state_is_good_for_once(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"once"),
    #{~"error" := #{~"code" := ?INVALID}} =
        ask(Client, ~"tools/call", (named(~"once"))#{
            requestState => State,
            inputResponses => #{who => #{action => accept, content => #{name => 7}}}}),
    hello(retry(Client, named(~"once"), State)),
    Again = retry(client(Config), named(~"once"), State),
    _ = refused(Again),
    #{~"error" := #{~"message" := Message}} = Again,
    ~"requestState: it was used before; send the request again without it" = Message,
    %% Another state of the same request is another.
    hello(retry(Client, named(~"once"), first_round(Client, ~"once"))),
    Often = first_round(Client, ~"often"),
    [hello(retry(Client, named(~"often"), Often)) || _ <- [1, 2]],
    %% Its handler ran for none of those that were refused.
    7 = length(rounds()).

%% A call that becomes a task may bring a state, too.
a_task_uses_a_state_once(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"later"),
    Extensions = #{extensions => #{~"io.modelcontextprotocol/tasks" => #{}}},
    Tasks = with_capabilities(maps:merge(?ALL, Extensions), Client),
    Task = fun() -> erlmcp_test_tasks:id(retry(Tasks, named(~"later"), State)) end,
    #{~"result" := #{~"content" := [#{~"text" := ~"Hello, Joe"}]}} =
        erlmcp_test_tasks:until(Tasks, Task(), ~"completed"),
    #{~"error" := #{~"code" := ?INVALID}} = erlmcp_test_tasks:until(Tasks, Task(), ~"failed").

of_racing_retries_one_goes_on(Config) ->
    State = first_round(client(Config), ~"once"),
    Test = self(),
    Racers = [spawn_link(fun() ->
        Client = client(Config),
        Test ! {ready, self()},
        receive go -> ok end,
        Test ! {self(), retry(Client, named(~"once"), State)},
        receive over -> ok end
    end) || _ <- lists:seq(1, 10)],
    [receive {ready, Racer} -> ok end || Racer <- Racers],
    [Racer ! go || Racer <- Racers],
    Answers = [receive {Racer, Answer} -> Answer end || Racer <- Racers],
    [Racer ! over || Racer <- Racers],
    {[Greeting], Others} = lists:partition(fun(Answer) -> is_map_key(~"result", Answer) end,
                                           Answers),
    ok = hello(Greeting),
    [_ = refused(Other) || Other <- Others],
    ok.

other_options_are_refused(Config) ->
    Client = client(Config),
    [#{~"error" := #{~"code" := -32603}} = ask(Client, ~"tools/call", named(Name))
     || Name <- [~"twice", ~"both"]].

used_states_are_bounded(Config) ->
    Server = erlmcp_test_client:start((definitions(self()))#{limits => #{used_states => 2}}),
    full(client(Server, Config), 2),
    erlmcp_test_client:stop(Server).

used_states_of_one_are_bounded(Config) ->
    Limits = #{used_states_per_principal => 2},
    Server = erlmcp_test_client:start((definitions(self()))#{limits => Limits}),
    full(client(Server, Config), 2),
    case transport(Config) of
        http ->
            Other = client(Server#{from => {127, 0, 1, 1}}, Config),
            hello(retry(Other, named(~"once"), first_round(Other, ~"once")));
        _ ->
            ok
    end,
    erlmcp_test_client:stop(Server).

%% Bounded refusal: at the limit and one more. What is good for once only is refused.
full(Client, Max) ->
    [hello(retry(Client, named(~"once"), first_round(Client, ~"once")))
     || _ <- lists:seq(1, Max)],
    State = first_round(Client, ~"once"),
    #{~"error" := #{~"code" := 1060, ~"data" := Data}} = retry(Client, named(~"once"), State),
    Observed = Max + 1,
    #{~"limit" := Max, ~"observed" := Observed, ~"retryAfterMs" := 1000} = Data,
    hello(retry(Client, named(~"often"), first_round(Client, ~"often"))).

expired_states_make_room(Config) ->
    Limits = #{used_states => 1, input_timeout_ms => 500},
    Server = erlmcp_test_client:start((definitions(self()))#{limits => Limits}),
    Client = client(Server, Config),
    ok = has_room(Client),
    ok = has_room(Client),
    erlmcp_test_client:stop(Server).

has_room(Client) ->
    case retry(Client, named(~"once"), first_round(Client, ~"once")) of
        #{~"result" := _} = Greeting -> hello(Greeting);
        #{~"error" := #{~"code" := 1060}} -> has_room(Client);
        %% The new state has expired as well.
        #{~"error" := #{~"code" := ?INVALID}} -> has_room(Client)
    end.

%% "this field is an opaque string meaningful only to the server"; it is encrypted.
state_tells_nothing(Config) ->
    Client = client(Config),
    States = [first_round(Client, ~"greet") || _ <- lists:seq(1, 5)],
    5 = length(lists:usort(States)),
    [begin
         true = lists:all(fun(C) -> C > 16#20 andalso C < 16#7f end, binary_to_list(State)),
         nomatch = binary:match(base64:decode(State, #{mode => urlsafe, padding => false}),
                                [?SECRET, ~"greet", ~"name"])
     end || State <- States].

%% "servers MUST protect its integrity (e.g. HMAC or AEAD) and MUST reject state that fails
%% verification."
changed_state_is_refused(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"greet"),
    _ = rounds(),
    Size = byte_size(State),
    Changed = [begin
                   <<Before:At/binary, Byte, After/binary>> = State,
                   <<Before/binary, (other(Byte)), After/binary>>
               end || At <- lists:seq(0, Size - 1)],
    [refused(retry(Client, named(~"greet"), Bad))
     || Bad <- Changed ++ [~"", ~"x", <<State/binary, "A">>, <<State/binary, "=">>,
                           <<State/binary, State/binary>>, binary:part(State, 0, Size - 1),
                           binary:part(State, 1, Size - 1), <<" ", State/binary>>,
                           <<State/binary, "\n">>, binary:copy(~"A", Size), ~"\x{20ac}"]],
    [] = rounds(),
    hello(retry(Client, named(~"greet"), State)).

%% Another character of the same alphabet.
other($A) -> $B;
other(_) -> $A.

%% "an identifier for the originating request, e.g. the method name and a digest of its salient
%% parameters, rejecting state presented on a request that does not match."
state_is_of_its_request(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"greet"),
    Sent = #{inputResponses => answers(), requestState => State},
    [refused(ask(Client, Method, maps:merge(Params, Sent)))
     || {Method, Params} <-
            [{~"tools/call", named(~"other")}, {~"tools/call", named(~"count")},
             {~"tools/call", #{name => ~"greet", arguments => #{a => 1}}},
             {~"prompts/get", #{name => ~"greet"}},
             {~"prompts/get", #{name => ~"greet", arguments => #{}}},
             {~"resources/read", #{uri => ~"test://greet"}}]],
    #{~"result" := #{~"requestState" := Read}} =
        ask(Client, ~"resources/read", #{uri => ~"test://greet"}),
    [refused(ask(Client, ~"resources/read", #{uri => Uri, inputResponses => answers(),
                                              requestState => Read}))
     || Uri <- [~"test://other", ~"test://item/1"]],
    %% It is the same request that counts, not how it is written.
    hello(retry(Client, #{name => ~"greet"}, State)),
    Order = #{name => ~"greet", arguments => #{b => 1, a => [1, #{c => 2, d => 3}]}},
    Sorted = state(ask(Client, ~"tools/call", Order)),
    hello(retry(Client, Order, Sorted)),
    refused(retry(Client, Order#{arguments := #{b => 1, a => [1, #{c => 2, d => 4}]}}, Sorted)).

%% "a short expiry (TTL), rejecting state presented after it lapses".
state_expires(Config) ->
    Short = erlmcp_test_client:start((definitions(self()))#{limits => #{input_timeout_ms => 1}}),
    Client = client(Short, Config),
    State = first_round(Client, ~"greet"),
    pass(erlang:system_time(millisecond) + 1),
    _ = rounds(),
    refused(retry(Client, named(~"greet"), State)),
    [] = rounds(),
    erlmcp_test_client:stop(Short).

%% The clock is what is waited for.
pass(Time) ->
    case erlang:system_time(millisecond) of
        Now when Now > Time -> ok;
        _ -> receive after 1 -> pass(Time) end
    end.

with_keys(Keys, Config) ->
    Server = erlmcp_test_client:start((definitions(self()))#{keys => Keys}),
    {Server, client(Server, Config)}.

%% A key is replaced without a round lost: the new one seals, the old one still opens.
keys_rotate(Config) ->
    [Old, New] = [crypto:strong_rand_bytes(32) || _ <- [1, 2]],
    {Before, BeforeClient} = with_keys([Old], Config),
    {Rotated, RotatedClient} = with_keys([New, Old], Config),
    {After, AfterClient} = with_keys([New], Config),
    First = first_round(BeforeClient, ~"greet"),
    hello(retry(RotatedClient, named(~"greet"), First)),
    refused(retry(AfterClient, named(~"greet"), First)),
    Second = first_round(RotatedClient, ~"greet"),
    hello(retry(AfterClient, named(~"greet"), Second)),
    refused(retry(BeforeClient, named(~"greet"), Second)),
    [erlmcp_test_client:stop(Server) || Server <- [Before, Rotated, After]].

%% "without requiring a shared storage layer across server instances or requiring stateful load
%% balancing."
keys_are_shared(Config) ->
    Keys = [crypto:strong_rand_bytes(32), crypto:strong_rand_bytes(32)],
    {One, OneClient} = with_keys(Keys, Config),
    {Two, TwoClient} = with_keys(Keys, Config),
    hello(retry(TwoClient, named(~"greet"), first_round(OneClient, ~"greet"))),
    hello(retry(OneClient, named(~"greet"), first_round(TwoClient, ~"greet"))),
    %% A state of several rounds wanders.
    Last = lists:foldl(fun(Client, State) -> state(retry(Client, named(~"count"), State)) end,
                       first_round(OneClient, ~"count"),
                       [TwoClient, OneClient, TwoClient, OneClient]),
    #{~"result" := #{~"content" := [#{~"text" := ~"five"}]}} =
        retry(TwoClient, named(~"count"), Last),
    [erlmcp_test_client:stop(Server) || Server <- [One, Two]].

own_keys_are_not_shared(Config) ->
    Other = erlmcp_test_client:start(definitions(self())),
    State = first_round(client(Config), ~"greet"),
    refused(retry(client(Other, Config), named(~"greet"), State)),
    erlmcp_test_client:stop(Other).

%% "If additional, unexpected parameters are provided in the InputResponses object, the server
%% SHOULD ignore any information it does not recognize or need."
extra_responses_are_ignored(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"greet"),
    _ = rounds(),
    More = (answers())#{more => #{action => accept}, ~"" => #{}},
    hello(ask(Client, ~"tools/call",
              (named(~"greet"))#{inputResponses => More, requestState => State})),
    [{_, #{input := Input}}] = rounds(),
    [~"who"] = maps:keys(Input).

%% "the server SHOULD respond with a new InputRequiredResult requesting the missing information
%% again, rather than returning an error."
missing_responses_are_asked_again(Config) ->
    Client = client(Config),
    First = ask(Client, ~"tools/call", named(~"fill")),
    #{~"result" := #{~"inputRequests" := #{~"a" := _, ~"b" := _}}} = First,
    Retry = fun(State, Given) ->
        ask(Client, ~"tools/call", maps:merge((named(~"fill"))#{requestState => State}, Given))
    end,
    %% Nothing at all; nothing in it; one of two; then the other.
    None = Retry(state(First), #{}),
    #{~"result" := #{~"inputRequests" := #{~"a" := _, ~"b" := _}}} = None,
    Empty = Retry(state(None), #{inputResponses => #{}}),
    #{~"result" := #{~"inputRequests" := #{~"a" := _, ~"b" := _}}} = Empty,
    One = Retry(state(Empty), #{inputResponses => #{b => #{action => decline}}}),
    #{~"result" := #{~"inputRequests" := #{~"a" := _} = Missing}} = One,
    1 = map_size(Missing),
    #{~"result" := #{~"structuredContent" := #{~"a" := ~"accept", ~"b" := ~"decline"}}} =
        Retry(state(One), #{inputResponses => #{a => #{action => accept}}}).

%% "Protocol errors (malformed JSON, invalid schema, internal server errors) SHOULD return a
%% JSON-RPC error response with an appropriate error code and message."
malformed_input_is_refused(Config) ->
    Client = client(Config),
    State = first_round(Client, ~"greet"),
    _ = rounds(),
    [begin
         #{~"error" := #{~"code" := ?INVALID, ~"message" := Message}} =
             ask(Client, ~"tools/call", maps:merge(named(~"greet"), Given)),
         {0, _} = binary:match(Message, Field)
     end || {Field, Given} <-
                [{~"inputResponses", #{inputResponses => Bad, requestState => State}}
                 || Bad <- [null, 1, ~"who", [], [answers()], true, #{who => null},
                            #{who => ~"Joe"}, #{who => []}, #{who => 1},
                            #{who => #{}, other => null}]]
                ++ [{~"requestState", #{inputResponses => answers(), requestState => Bad}}
                    || Bad <- [null, 1, [], #{}, true]]],
    [] = rounds(),
    hello(retry(Client, named(~"greet"), State)).

%% "the server MUST return a MissingRequiredClientCapabilityError (-32021) whose
%% data.requiredCapabilities lists the missing capabilities. On HTTP, the response status MUST be
%% 400 Bad Request."; "Servers MUST NOT send an inputRequests that the client has not declared
%% support for in its capabilities."; "Servers MUST NOT send elicitation requests with modes that
%% are not supported by the client."
undeclared_capabilities_are_named(Config) ->
    Status = case transport(Config) of http -> 400; _ -> 200 end,
    [begin
         Client = with_capabilities(Declared, client(Config)),
         #{~"error" := #{~"code" := -32021, ~"data" := Data} = Error} =
             ask(Client, ~"tools/call", named(Tool)),
         Status = get(status),
         false = is_map_key(~"result", Error),
         #{~"requiredCapabilities" := Required} = Data
     end || {Tool, Declared, Required} <-
                [{~"sample", #{}, #{~"sampling" => #{}}},
                 {~"sample", #{roots => #{}, elicitation => #{}}, #{~"sampling" => #{}}},
                 {~"roots", #{sampling => #{}}, #{~"roots" => #{}}},
                 {~"form", #{elicitation => #{url => #{}}}, #{~"elicitation" => #{~"form" => #{}}}},
                 {~"url", #{}, #{~"elicitation" => #{~"url" => #{}}}},
                 {~"url", #{elicitation => #{}}, #{~"elicitation" => #{~"url" => #{}}}},
                 {~"url", #{elicitation => #{form => #{}}},
                  #{~"elicitation" => #{~"url" => #{}}}}]],
    %% Without the capability, form mode is what an empty object says too.
    #{~"error" := #{~"data" := #{~"requiredCapabilities" := #{~"elicitation" := Form}}}} =
        ask(with_capabilities(#{}, client(Config)), ~"tools/call", named(~"form")),
    true = lists:member(Form, [#{}, #{~"form" => #{}}]),
    Both = ask(with_capabilities(#{}, client(Config)), ~"prompts/get", #{name => ~"greet"}),
    #{~"error" := #{~"code" := -32021}} = Both.

%% "an empty capabilities object is equivalent to declaring support for form mode only".
declared_capabilities_are_enough(Config) ->
    [#{~"result" := #{~"resultType" := ~"input_required"}} =
         ask(with_capabilities(Declared, client(Config)), ~"tools/call", named(Tool))
     || {Tool, Declared} <- [{~"form", #{elicitation => #{}}},
                             {~"form", #{elicitation => #{form => #{}}}},
                             {~"url", #{elicitation => #{url => #{}}}},
                             {~"sample", #{sampling => #{}}}, {~"roots", #{roots => #{}}},
                             {~"tools", #{sampling => #{tools => #{}}}}]].

%% "Servers MUST NOT send tool-enabled sampling requests to Clients that have not declared support
%% for tool use via the sampling.tools capability."
sampling_with_tools_needs_its_capability(Config) ->
    Client = with_capabilities(#{sampling => #{}}, client(Config)),
    #{~"error" := #{~"code" := -32021, ~"data" := Data}} =
        ask(Client, ~"tools/call", named(~"tools")),
    #{~"requiredCapabilities" := #{~"sampling" := #{~"tools" := #{}}}} = Data.

%% "inputRequests values are request objects that MUST be one of" the three: what a handler made up
%% is its fault, and not sent.
strange_requests_are_not_sent(Config) ->
    Client = client(Config),
    logger:set_primary_config(level, none),
    [#{~"error" := #{~"code" := -32603}} = ask(Client, ~"tools/call", named(Tool))
     || Tool <- [~"strange", ~"unmade"]],
    logger:set_primary_config(level, notice).

bytes() ->
    ?LET(Bytes, list(byte()), list_to_binary(Bytes)).

%% What the state and cursors rely on, for all of them: it opens with its key and what it is bound
%% to, and with one bit changed it does not. With a nonce of the value's own, it is always the same.
sealed_opens_and_nothing_else(_) ->
    holds(?FORALL({Plain, Bound, Other, Nonce, Keys, Bit},
                  {bytes(), bytes(), bytes(), binary(12), non_empty(list(binary(32))),
                   non_neg_integer()},
        begin
            [Key | Rest] = Keys,
            Own = erlmcp_sealed_state:seal(Plain, Bound, Keys),
            Own =:= erlmcp_sealed_state:seal(Plain, Bound, Keys) andalso
            lists:all(fun(Sealed) ->
                {ok, Plain} =:= erlmcp_sealed_state:open(Sealed, Bound, Keys)
                andalso {ok, Plain} =:= erlmcp_sealed_state:open(Sealed, Bound, Rest ++ [Key])
                andalso error =:= erlmcp_sealed_state:open(flip(Sealed, Bit), Bound, Keys)
                andalso (lists:member(Key, Rest)
                         orelse error =:= erlmcp_sealed_state:open(Sealed, Bound,
                                                                   [inverted(Key) | Rest]))
                andalso (Other =:= Bound
                         orelse error =:= erlmcp_sealed_state:open(Sealed, Other, Keys))
            end, [erlmcp_sealed_state:seal(Plain, Bound, Nonce, Keys), Own])
        end), 300).

flip(Bytes, Bit) ->
    At = Bit rem bit_size(Bytes),
    <<Before:At/bits, One:1, After/bits>> = Bytes,
    <<Before/bits, (1 - One):1, After/bits>>.

inverted(Key) ->
    << <<(255 - Byte)>> || <<Byte>> <= Key >>.
