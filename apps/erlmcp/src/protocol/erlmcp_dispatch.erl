-module(erlmcp_dispatch).
-moduledoc """
The effect of each request method, for all revisions and both eras: an answer that is known, or a
call of user code. Pure. `erlmcp_engine` has checked that the revision has the method.

Internal.
""".

-export([request/5]).

-export_type([client/0]).

-doc "The client of a request, in the same form for both eras.".
-type client() :: #{
    principal := erlmcp_auth:principal(),
    scopes := erlmcp:scopes(),
    claims => map(),
    revision := erlmcp_revision:revision(),
    client_info := map() | undefined,
    client_capabilities := map(),
    log_level := erlmcp_meta:level() | undefined,
    %% The headers of a stateless request on HTTP, which mirror its body.
    headers => none | erlmcp_header:headers(),
    atom() => term()
}.

-doc "Returns the effect of a request.".
-spec request(Method :: binary(), erlmcp_message:id(), Params :: map(), client(),
              erlmcp_catalog:catalog()) -> erlmcp_engine:effect().
request(Method, Id, Params, #{revision := Revision} = Client, Catalog) ->
    case effect(Method, Id, Params, Client, Catalog) of
        {error, Refusal} -> erlmcp_reply:refuse(Id, Refusal, Revision);
        {reply, _, _} = Reply -> bounded(Reply, Id, Revision, Catalog);
        Effect -> Effect
    end.

%% Answers from the catalog have the same bound as results of handlers.
bounded({reply, _, Bytes} = Reply, Id, Revision, Catalog) ->
    maybe
        {ok, Max} ?= erlmcp_catalog:reply_bytes(Catalog),
        {too_large, Size} ?= erlmcp_reply:bounded(Bytes, Max),
        erlmcp_reply:refuse(Id, erlmcp_reply:too_large(Size, Max, #{}), Revision)
    else
        _ -> Reply
    end.

effect(~"tools/call", Id, Params, Client, Catalog) ->
    named(tool, ~"tools/call", Id, Params, Client, Catalog);
effect(~"prompts/get", Id, Params, Client, Catalog) ->
    named(prompt, ~"prompts/get", Id, Params, Client, Catalog);
effect(~"resources/read", Id, Params, Client, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, Kind, Definition, Variables} ?= permitted_resource(Uri, Client, Catalog),
        case Definition of
            #{contents := Contents} ->
                #{revision := Revision} = Client,
                skill_file(Id, Contents, Revision, Catalog);
            #{} ->
                Target = #{method => ~"resources/read", uri => Uri},
                call(Kind, Id, Definition, Variables, Target, Params, Client, Catalog)
        end
    end;
effect(~"completion/complete", Id, Params, Client, Catalog) ->
    complete(Id, Params, Client, Catalog);
effect(~"resources/subscribe", Id, Params, Client, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_subscription:uri(Params),
        {ok, _, _, _} ?= permitted_resource(Uri, Client, Catalog),
        {subscribe, Id, Uri}
    end;
effect(~"resources/unsubscribe", Id, Params, _, _) ->
    maybe
        {ok, Uri} ?= erlmcp_subscription:uri(Params),
        {unsubscribe, Id, Uri}
    end;
effect(~"subscriptions/listen", Id, Params, Client, Catalog) ->
    erlmcp_subscription:listen(Id, Params, Client, Catalog);
effect(~"skills/get", Id, Params, #{revision := Revision}, Catalog) ->
    skill(Id, Params, Revision, Catalog);
effect(~"resources/directory/read", Id, Params, #{revision := Revision}, Catalog) ->
    skill_directory(Id, Params, Revision, Catalog);
effect(<<"tasks/", _/binary>> = Method, Id, Params, Client, Catalog) ->
    maybe
        {ok, Operation, Arguments} ?=
            erlmcp_task:operation(Method, Params, Client, erlmcp_catalog:has_tasks(Catalog)),
        Definition = #{page_size => erlmcp_catalog:page_size(Catalog)},
        call({task, Operation}, Id, Definition, Arguments, #{method => Method}, Params, Client,
             Catalog)
    end;
effect(~"server/discover", Id, _, #{revision := Revision}, Catalog) ->
    erlmcp_reply:result(Id, erlmcp_catalog:greeting(Revision, Catalog));
effect(List, Id, Params, Client, Catalog) ->
    maybe
        {ok, Page} ?= page(List, Params, Client, Catalog),
        erlmcp_reply:result(Id, Page)
    end.

page(List, Params, #{revision := Revision, principal := Principal}, Catalog) ->
    case erlmcp_params:cursor(Params) of
        {ok, none} ->
            {ok, erlmcp_catalog:first_page(List, Revision, Principal, Catalog)};
        {ok, Cursor} ->
            case erlmcp_catalog:page(List, Cursor, Revision, Principal, Catalog) of
                {ok, _} = Page -> Page;
                error -> {error, erlmcp_params:bad_cursor()}
            end;
        {error, _} = Error ->
            Error
    end.

named(Kind, Method, Id, Params, Client, Catalog) ->
    maybe
        {ok, Name} ?= erlmcp_params:string(~"name", Params),
        {ok, Arguments} ?= erlmcp_params:object(~"arguments", Params),
        {ok, Definition} ?= find(Kind, Name, Client, Catalog),
        ok ?= mirrored(Kind, Definition, Arguments, Client),
        ok ?= permitted(Definition, Client),
        ok ?= required(Kind, Definition, Arguments),
        {ok, Task} ?= task(Kind, Definition, Params, Client, Catalog),
        Target = #{method => Method, name => Name},
        {call, Call} ?= call(Kind, Id, Definition, Arguments, Target, Params, Client, Catalog),
        case Task of
            none -> {call, Call};
            Mode -> {call, Call#{task => Mode}}
        end
    end.

mirrored(tool, #{headers := [_ | _] = Declared}, Arguments, #{headers := #{} = Headers}) ->
    erlmcp_header:check_arguments(Arguments, Declared, Headers);
mirrored(_, _, _, _) ->
    ok.

task(tool, Definition, Params, Client, Catalog) ->
    erlmcp_task:mode(Definition, Params, Client, erlmcp_catalog:has_tasks(Catalog));
task(prompt, _, _, _, _) ->
    {ok, none}.

find(tool, Name, #{principal := Principal}, Catalog) ->
    found(erlmcp_catalog:tool(Name, Principal, Catalog), tool_not_found, ~"unknown tool: ", Name);
find(prompt, Name, #{principal := Principal}, Catalog) ->
    found(erlmcp_catalog:prompt(Name, Principal, Catalog), prompt_not_found, ~"unknown prompt: ",
          Name).

found({ok, _} = Found, _, _, _) ->
    Found;
found(error, Refused, Unknown, Name) ->
    {error, erlmcp_refusal:new(Refused, [Unknown, erlmcp_value_text:name(Name)],
                               #{code => -32602, status => 400})}.

%% A client that sees a definition knows that it exists; to use it the client must have its scopes.
permitted(Definition, #{scopes := Scopes}) ->
    erlmcp_scope:check(erlmcp_definition:needs(Definition), Scopes).

permitted_resource(Uri, Client, Catalog) ->
    maybe
        {ok, _, Definition, _} = Found ?= resource(Uri, Client, Catalog),
        ok ?= permitted(Definition, Client),
        Found
    end.

resource(Uri, #{revision := Revision, principal := Principal}, Catalog) ->
    case erlmcp_catalog:resource(Uri, Principal, Catalog) of
        {ok, _, _, _} = Found -> Found;
        error -> {error, erlmcp_result:missing_resource(Uri, Revision)}
    end.

%% The arguments that a prompt's definition requires; all of them are strings.
required(prompt, #{wire := #{~"arguments" := Declared}}, Arguments) ->
    Missing = [Name || #{~"name" := Name, ~"required" := true} <- Declared,
                       not is_map_key(Name, Arguments)],
    Mistyped = [Name || Name := Value <- Arguments, not is_binary(Value)],
    case {Missing, Mistyped} of
        {[], []} -> ok;
        {[Name | _], _} -> {error, erlmcp_params:missing([~"arguments.", Name])};
        {[], [Name | _]} ->
            {error, erlmcp_params:mistyped([~"arguments.", erlmcp_value_text:name(Name)],
                                           ~"a string", map_get(Name, Arguments))}
    end;
required(_, _, _) ->
    ok.

call(Kind, Id, Definition, Arguments, Target, Params, Client, Catalog) ->
    #{revision := Revision} = Client,
    maybe
        {ok, Meta} ?= erlmcp_params:object(~"_meta", Params),
        {ok, Token} ?= erlmcp_meta:progress_token(Meta),
        {ok, Input} ?= input(Params, Revision),
        Context = context(Target, Meta, Token, Client, Catalog),
        {call, #{id => Id, kind => Kind, definition => Definition, arguments => Arguments,
                 context => Context, input => Input, keys => erlmcp_catalog:keys(Catalog)}}
    end.

%% The context of most calls is built in one step.
context(#{method := Method, name := Name} = Target, Meta, Token, Client, Catalog) when
    map_size(Target) =:= 2, not is_map_key(claims, Client)
->
    #{principal := Principal, scopes := Scopes, revision := Revision, client_info := Info,
      client_capabilities := Capabilities, log_level := Level} = Client,
    #{method => Method, name => Name, principal => Principal, scopes => Scopes,
      revision => Revision, meta => Meta, client_info => Info,
      client_capabilities => Capabilities, log_level => Level, progress_token => Token,
      call => #{server_meta => erlmcp_catalog:server_meta(Catalog)}};
context(Target, Meta, Token, Client, Catalog) ->
    Who = maps:with([principal, scopes, claims, revision, client_info, client_capabilities,
                     log_level], Client),
    maps:merge(Target, Who#{meta => Meta, progress_token => Token,
                            call => #{server_meta => erlmcp_catalog:server_meta(Catalog)}}).

%% The input that a stateless client returns from an earlier round; the call opens the state.
input(Params, '2026-07-28') when
    is_map_key(~"inputResponses", Params); is_map_key(~"requestState", Params)
->
    maybe
        {ok, Responses} ?= erlmcp_params:objects(~"inputResponses", Params),
        case Params of
            #{~"requestState" := State} when is_binary(State) ->
                {ok, #{responses => Responses, state => State}};
            #{~"requestState" := State} ->
                {error, erlmcp_params:mistyped(~"requestState", ~"a string", State)};
            #{} ->
                {ok, #{responses => Responses}}
        end
    end;
input(_, _) ->
    {ok, #{responses => #{}}}.

%% Completion: values in the definition are answered here, values of a fun by a call.

complete(Id, Params, #{revision := Revision} = Client, Catalog) ->
    maybe
        {ok, Ref} ?= erlmcp_params:object(~"ref", Params),
        {ok, Argument} ?= erlmcp_params:object(~"argument", Params),
        {ok, Name} ?= erlmcp_params:string(~"name", Argument),
        {ok, Value} ?= erlmcp_params:string(~"value", Argument),
        {ok, Given} ?= erlmcp_params:object(~"context", Params),
        {ok, Resolved} ?= erlmcp_params:object(~"arguments", Given),
        [] ?= [erlmcp_params:mistyped([~"context.arguments.", erlmcp_value_text:name(Known)],
                                      ~"a string", Other)
               || Known := Other <- Resolved, not is_binary(Other)],
        {ok, Target, Definition} ?= reference(Ref, Client, Catalog),
        ok ?= permitted(Definition, Client),
        case Definition of
            #{complete := #{Name := Complete}} when is_function(Complete, 2) ->
                Handler = fun(_, Context) -> Complete(Value, Context) end,
                call(completion, Id, #{handler => Handler}, Resolved,
                     Target#{method => ~"completion/complete", arguments => Resolved},
                     Params, Client, Catalog);
            #{complete := #{Name := Values}} ->
                Matching = [Known || Known <- Values, string:prefix(Known, Value) =/= nomatch],
                completed(Id, Matching, Revision, Catalog);
            #{} ->
                completed(Id, [], Revision, Catalog)
        end
    else
        [Refusal | _] -> {error, Refusal};
        {error, _} = Error -> Error
    end.

reference(#{~"type" := ~"ref/prompt", ~"name" := Name}, Client, Catalog) when is_binary(Name) ->
    maybe
        {ok, Definition} ?= find(prompt, Name, Client, Catalog),
        {ok, #{name => Name}, Definition}
    end;
reference(#{~"type" := ~"ref/resource", ~"uri" := Uri}, Client, Catalog) when is_binary(Uri) ->
    #{principal := Principal} = Client,
    case erlmcp_catalog:resource_template(Uri, Principal, Catalog) of
        {ok, Definition} ->
            {ok, #{uri => Uri}, Definition};
        error ->
            maybe
                {ok, _, Definition, _} ?= resource(Uri, Client, Catalog),
                {ok, #{uri => Uri}, Definition}
            end
    end;
reference(#{~"type" := ~"ref/prompt"} = Ref, _, _) ->
    {error, erlmcp_params:mistyped(~"ref.name", ~"a string", maps:get(~"name", Ref, undefined))};
reference(#{~"type" := ~"ref/resource"} = Ref, _, _) ->
    {error, erlmcp_params:mistyped(~"ref.uri", ~"a string", maps:get(~"uri", Ref, undefined))};
reference(Ref, _, _) ->
    {error, erlmcp_params:mistyped(~"ref.type", ~"ref/prompt or ref/resource",
                                   maps:get(~"type", Ref, undefined))}.

completed(Id, Values, Revision, Catalog) ->
    Call = #{server_meta => erlmcp_catalog:server_meta(Catalog)},
    Context = #{revision => Revision, call => Call},
    {ok, Result} = erlmcp_result:from(completion, Values, #{}, Context),
    erlmcp_reply:result(Id, Result).

%% The requests of the Skills extension about one skill, one folder or one file. (`skills/list` is a
%% list like the others.)

skill(Id, Params, Revision, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, #{encoded := Skill}} ?=
            skill_found(erlmcp_catalog:definition(skill, Uri, Catalog), Uri, ~"skill"),
        skill_result(Id, {~"skill", Skill}, Revision, Catalog)
    end.

skill_directory(Id, Params, Revision, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, Cursor} ?= erlmcp_params:cursor(Params),
        {ok, Page} ?=
            skill_found(erlmcp_catalog:directory(Uri, Cursor, Revision, Catalog), Uri,
                        ~"directory"),
        erlmcp_reply:result(Id, Page)
    else
        bad_cursor -> {error, erlmcp_params:bad_cursor()};
        {error, _} = Error -> Error
    end.

skill_found({ok, _} = Found, _, _) -> Found;
skill_found(bad_cursor, _, _) -> bad_cursor;
skill_found(error, Uri, What) ->
    Message = [~"no ", What, ~" has the URI ", Uri],
    {error, erlmcp_refusal:new(resource_not_found, Message,
                               #{code => -32602, status => 400, data => #{~"uri" => Uri}})}.

skill_file(Id, Contents, Revision, Catalog) ->
    skill_result(Id, {~"contents", Contents}, Revision, Catalog).

skill_result(Id, {Member, Encoded}, Revision, Catalog) ->
    erlmcp_reply:result(Id, erlmcp_catalog:result(Member, Encoded, Revision, Catalog)).
