-module(handler_returns_SUITE).
-moduledoc """
What handlers return, as a client sees it: `{ok, Result}` of every kind of handler, text and maps of
resources, and the terms of Elixir: `nil`, dates and other structs.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, log/2]).
-export([ok_results_of_every_handler/1, ok_results_are_renamed_under_a_mount/1,
         text_of_resources_is_chardata/1, maps_of_resources_are_json/1, errors_are_text/1,
         lists_of_resources_are_contents/1, nil_is_null/1,
         dates_are_iso_8601/1, dates_are_those_of_the_calendar/1,
         structs_are_refused_by_their_names/1, structs_in_definitions_are_refused/1,
         wrong_arguments_of_a_handler_are_told/1]).

-import(erlmcp_test_http, [call/3, start/1, stop/1]).
-import(erlmcp_test_property, [holds/2]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [ok_results_of_every_handler, ok_results_are_renamed_under_a_mount,
     text_of_resources_is_chardata, maps_of_resources_are_json, errors_are_text,
     lists_of_resources_are_contents, nil_is_null, dates_are_iso_8601,
     dates_are_those_of_the_calendar,
     structs_are_refused_by_their_names,
     structs_in_definitions_are_refused, wrong_arguments_of_a_handler_are_told].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

ok_results_of_every_handler(_) ->
    Server = start(#{tools => [tool(~"text", {ok, ~"a"}),
                               tool(~"quick", {ok, ~"a"}, #{quick => true}),
                               tool(~"map", {ok, #{n => 1}}), tool(~"twice", {ok, {ok, ~"a"}}),
                               tool(~"error", {ok, {error, ~"a"}}),
                               tool(~"asks", {ok, {input_required, #{}}})],
                     resources => [resource(~"a:text", {ok, ~"a"}),
                                   resource(~"a:none", {ok, {error, not_found}})],
                     resource_templates => [#{uri_template => ~"b:{v}", name => ~"b",
                                              complete => #{v => gives({ok, [~"a"]})},
                                              handler => gives({ok, {blob, ~"a"}})}],
                     prompts => [#{name => ~"p", handler => gives({ok, ~"a"})}]}),
    [#{~"content" := [#{~"text" := ~"a"}]} = result(Server, ~"tools/call", #{name => Name})
     || Name <- [~"text", ~"quick"]],
    #{~"structuredContent" := #{~"n" := 1}} = result(Server, ~"tools/call", #{name => ~"map"}),
    #{~"isError" := true} = result(Server, ~"tools/call", #{name => ~"error"}),
    #{~"contents" := [#{~"text" := ~"a"}]} = read(Server, ~"a:text"),
    #{~"contents" := [#{~"blob" := ~"YQ=="}]} = read(Server, ~"b:c"),
    -32602 = code(call(Server, ~"resources/read", #{uri => ~"a:none"})),
    #{~"messages" := [#{~"content" := #{~"text" := ~"a"}}]} =
        result(Server, ~"prompts/get", #{name => ~"p"}),
    #{~"completion" := #{~"values" := [~"a"]}} =
        result(Server, ~"completion/complete", #{ref => #{type => ~"ref/resource", uri => ~"b:{v}"},
                                                 argument => #{name => ~"v", value => ~""}}),
    %% What is no result is none in `ok` either.
    [{bad_return, tool, _, _} = reason(Server, ~"tools/call", #{name => Name})
     || Name <- [~"twice", ~"asks"]],
    stop(Server).

ok_results_are_renamed_under_a_mount(_) ->
    Link = erlmcp_content:resource_link(~"data://city", ~"city"),
    Contents = erlmcp_content:text_contents(~"data://city", ~"text/plain", ~"Ulm"),
    Mounted = #{name => ~"m", version => ~"1", tools => [tool(~"link", {ok, [Link]})],
                resources => [resource(~"data://city", {ok, Contents}),
                              resource(~"data://text", [~"U", "l" | ~"m"]),
                              resource(~"data://map", #{uri => ~"data://city"})]},
    Server = start(#{mounts => [{~"m", Mounted}]}),
    #{~"content" := [#{~"uri" := ~"data://m/city"}]} =
        result(Server, ~"tools/call", #{name => ~"m_link"}),
    #{~"contents" := [#{~"uri" := ~"data://m/city", ~"text" := ~"Ulm"}]} =
        read(Server, ~"data://m/city"),
    #{~"contents" := [#{~"text" := ~"Ulm"}]} = read(Server, ~"data://m/text"),
    #{~"contents" := [#{~"text" := ~B'{"uri":"data://city"}'}]} = read(Server, ~"data://m/map"),
    stop(Server).

text_of_resources_is_chardata(_) ->
    Given = [{["Gr", [16#fc, ~"ße"], $!], ~"Grüße!"}, {"plain", ~"plain"}, {[[], ~"a"], ~"a"},
             {[~"a" | ~"b"], ~"ab"}, {[[]], ~""}],
    Wrong = [[~"a", ok], [<<255>>, $a], [16#110000], [1.5]],
    Uri = fun(N) -> <<"a:", (integer_to_binary(N))/binary>> end,
    Server = start(#{resources => [resource(Uri(N), Text, #{mime_type => ~"text/plain"})
                                   || {N, {Text, _}} <- lists:enumerate(Given)]
                         ++ [resource(Uri(-N), Text) || {N, Text} <- lists:enumerate(Wrong)]
                         ++ [resource(~"a:blob", {blob, [<<255>>, 254]}),
                             resource(~"a:no_bytes", {blob, []}),
                             resource(~"a:no_blob", {blob, [256]})]}),
    [{N, #{~"uri" := At, ~"mimeType" := ~"text/plain", ~"text" := Text}} = {N, Contents}
     || {N, {_, Text}} <- lists:enumerate(Given), At <- [Uri(N)],
        #{~"contents" := [Contents]} <- [read(Server, At)]],
    [{bad_return, resource, Text, _} = reason(Server, ~"resources/read", #{uri => Uri(-N)})
     || {N, Text} <- lists:enumerate(Wrong)],
    %% Bytes are iodata too.
    #{~"contents" := [#{~"blob" := ~"//4="}]} = read(Server, ~"a:blob"),
    #{~"contents" := [#{~"blob" := ~""}]} = read(Server, ~"a:no_bytes"),
    {bad_return, resource, {blob, [256]}, _} =
        reason(Server, ~"resources/read", #{uri => ~"a:no_blob"}),
    stop(Server).

maps_of_resources_are_json(_) ->
    Server = start(#{resources => [
        resource(~"a:json", #{n => 1, ~"s" => [nil]}), resource(~"a:empty", #{}),
        resource(~"a:typed", #{n => 1}, #{mime_type => ~"application/geo+json"}),
        resource(~"a:half", #{text => ~"a"}),
        resource(~"a:contents", erlmcp_content:blob_contents(~"a:other", ~"image/png", ~"a"))]}),
    #{~"contents" := [#{~"uri" := ~"a:json", ~"mimeType" := ~"application/json",
                        ~"text" := Json}]} = read(Server, ~"a:json"),
    #{~"n" := 1, ~"s" := [null]} = json:decode(Json),
    #{~"contents" := [#{~"text" := ~"{}"}]} = read(Server, ~"a:empty"),
    #{~"contents" := [#{~"mimeType" := ~"application/geo+json", ~"text" := ~B'{"n":1}'}]} =
        read(Server, ~"a:typed"),
    #{~"contents" := [#{~"text" := ~B'{"text":"a"}'}]} = read(Server, ~"a:half"),
    #{~"contents" := [#{~"uri" := ~"a:other", ~"mimeType" := ~"image/png", ~"blob" := ~"YQ=="}]} =
        read(Server, ~"a:contents"),
    stop(Server).

errors_are_text(_) ->
    No = {error, <<255>>},
    Server = start(#{resources => [resource(~"a:no", No)],
                     resource_templates => [#{uri_template => ~"b:{v}", name => ~"b",
                                              complete => #{v => gives(No)},
                                              handler => gives(No)}],
                     prompts => [#{name => ~"p", handler => gives(No)}]}),
    Complete = #{ref => #{type => ~"ref/resource", uri => ~"b:{v}"},
                 argument => #{name => ~"v", value => ~""}},
    [{Kind, {bad_return, Kind, No, _}} = {Kind, reason(Server, Method, Params)}
     || {Kind, Method, Params} <- [{resource, ~"resources/read", #{uri => ~"a:no"}},
                                   {resource, ~"resources/read", #{uri => ~"b:c"}},
                                   {prompt, ~"prompts/get", #{name => ~"p"}},
                                   {completion, ~"completion/complete", Complete}]],
    stop(Server).

%% A client would take an item that is no contents for an invalid result.
lists_of_resources_are_contents(_) ->
    Item = erlmcp_content:text_contents(~"a:other", undefined, ~"a"),
    Half = #{text => ~"a"},
    Wrong = [Half, #{uri => ~"a:b"}, #{}, ~"a", [Item]],
    Uri = fun(N) -> <<"a:", (integer_to_binary(N))/binary>> end,
    Mounted = #{name => ~"m", version => ~"1", resources => [resource(~"a:half", [Item, Half])]},
    Server = start(#{resources => [resource(Uri(N), [Item, No])
                                   || {N, No} <- lists:enumerate(Wrong)]
                         ++ [resource(~"a:first", [Half, Item]), resource(~"a:none", []),
                             resource(~"a:two", [Item, Item]),
                             resource(~"a:decoded", [#{~"uri" => ~"a:b", ~"blob" => ~""}])],
                     mounts => [{~"m", Mounted}]}),
    Expected = ~"contents as erlmcp_content makes them, which have uri, and text or blob",
    [{No, {bad_return, contents, No, Expected}} =
         {No, reason(Server, ~"resources/read", #{uri => At})}
     || {At, No} <- [{Uri(N), No} || {N, No} <- lists:enumerate(Wrong)]
            ++ [{~"a:first", Half}, {~"a:m/half", Half}]],
    #{~"contents" := [Same, Same]} = read(Server, ~"a:two"),
    #{~"contents" := []} = read(Server, ~"a:none"),
    #{~"contents" := [#{~"uri" := ~"a:b"}]} = read(Server, ~"a:decoded"),
    stop(Server).

%% In what tools return, beside their content, in definitions, in what a client is asked and sent,
%% and in what a client sends.
nil_is_null(_) ->
    Logs = #{name => ~"logs", handler => fun(_, Context) ->
        ok = erlmcp:log(Context, error, #{a => nil}),
        ~""
    end},
    Asks = #{name => ~"asks", handler => fun(_, _) ->
        Message = #{role => user, content => erlmcp_content:text(~"?", #{'_meta' => #{a => nil}})},
        {input_required, #{~"a" => erlmcp_input:sample(#{messages => [Message], maxTokens => 9})}}
    end},
    Echo = #{name => ~"echo", handler => fun(Given, _) -> Given end},
    Server = #{url := Url} =
        start(#{tools => [tool(~"map", #{a => nil, b => [null, nil], nil => true}),
                          tool(~"nil", {structured, nil}), Logs, Asks, Echo,
                          tool(~"content", [(erlmcp_content:text(~"a"))#{'_meta' => #{a => nil}}]),
                          tool(~"refuses", {refuse, erlmcp_refusal:new(
                              invalid_params, ~"no", #{data => #{~"a" => nil}})}),
                          tool(~"meta", ~"", #{meta => #{a => nil}})]}),
    #{~"structuredContent" := #{~"a" := null, ~"b" := [null, null], ~"nil" := true},
      ~"content" := [#{~"text" := Text}]} = result(Server, ~"tools/call", #{name => ~"map"}),
    #{~"a" := null} = json:decode(Text),
    #{~"structuredContent" := null, ~"content" := [#{~"text" := ~"null"}]} =
        result(Server, ~"tools/call", #{name => ~"nil"}),
    #{~"content" := [#{~"_meta" := #{~"a" := null}}]} =
        result(Server, ~"tools/call", #{name => ~"content"}),
    #{messages := [#{~"error" := #{~"data" := #{~"a" := null}}}]} =
        call(Server, ~"tools/call", #{name => ~"refuses"}),
    [#{~"a" := null}] = [Meta || #{~"name" := ~"meta", ~"_meta" := Meta}
                                     <- maps:get(~"tools", result(Server, ~"tools/list", #{}))],
    Level = #{meta => #{~"io.modelcontextprotocol/logLevel" => ~"debug",
                        ~"io.modelcontextprotocol/clientCapabilities" => #{sampling => #{}}}},
    #{messages := [#{~"params" := #{~"data" := #{~"a" := null}}}, _]} =
        erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"logs"}, Level),
    #{messages := [#{~"result" := #{~"inputRequests" := #{~"a" := #{~"params" := Asked}}}}]} =
        erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"asks"}, Level),
    #{~"messages" := [#{~"content" := #{~"_meta" := #{~"a" := null}}}]} = Asked,
    {ok, Client} = erlmcp_client:start_link({http, Url, #{}}),
    {ok, #{~"structuredContent" := #{~"a" := null}}} =
        erlmcp_client:call_tool(Client, ~"echo", #{a => nil}),
    ok = erlmcp_client:stop(Client),
    stop(Server).

dates_are_iso_8601(_) ->
    Date = #{'__struct__' => 'Elixir.Date', calendar => 'Elixir.Calendar.ISO',
             year => 2026, month => 7, day => 8},
    Time = #{'__struct__' => 'Elixir.Time', calendar => 'Elixir.Calendar.ISO',
             hour => 9, minute => 5, second => 7, microsecond => {40_000, 3}},
    Naive = (maps:merge(Time, Date))#{'__struct__' := 'Elixir.NaiveDateTime'},
    At = Naive#{'__struct__' := 'Elixir.DateTime', time_zone => ~"Etc/UTC", zone_abbr => ~"UTC",
                utc_offset => 0, std_offset => 0},
    Dates = [{Date, ~"2026-07-08"}, {Date#{year := -44, month := 12}, ~"-0044-12-08"},
             {Time, ~"09:05:07.040"}, {Time#{microsecond := {0, 0}}, ~"09:05:07"},
             {Naive, ~"2026-07-08T09:05:07.040"}, {At, ~"2026-07-08T09:05:07.040Z"},
             {At#{time_zone := ~"Europe/Vienna", utc_offset := 3600, std_offset := 3600},
              ~"2026-07-08T09:05:07.040+02:00"},
             {At#{time_zone := ~"America/St_Johns", utc_offset := -12_600},
              ~"2026-07-08T09:05:07.040-03:30"}],
    Server = start(#{tools => [tool(~"all", #{dates => [Given || {Given, _} <- Dates]}),
                               tool(~"date", Date)],
                     resources => [resource(~"a:date", #{on => Date})]}),
    #{~"structuredContent" := #{~"dates" := Texts}} =
        result(Server, ~"tools/call", #{name => ~"all"}),
    [{Given, Text} = {Given, Is} || {{Given, Text}, Is} <- lists:zip(Dates, Texts)],
    #{~"structuredContent" := ~"2026-07-08"} = result(Server, ~"tools/call", #{name => ~"date"}),
    %% Until 2026-07-28 structured content is an object.
    Session = #{session => erlmcp_test_http:initialize(Server, ~"2025-11-25")},
    #{messages := [#{~"result" := InSession}]} =
        erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"date"}, Session),
    #{~"content" => [#{~"type" => ~"text", ~"text" => ~B'"2026-07-08"'}]} =:= InSession
        orelse ct:fail(InSession),
    #{~"contents" := [#{~"text" := ~B'{"on":"2026-07-08"}'}]} = read(Server, ~"a:date"),
    stop(Server).

%% Beside OTP's calendar, which writes RFC 3339. Before 1970 (and with an offset, on its first day)
%% that of OTP 27 writes wrong fractions of a second.
dates_are_those_of_the_calendar(_) ->
    holds(?FORALL({Micro, Offset}, {range(86_400_000_000, 253_402_300_799_000_000),
                                    range(-14 * 60, 14 * 60)},
                  begin
                      Sign = if Offset < 0 -> $-; true -> $+ end,
                      Zone = lists:flatten(io_lib:format("~c~2..0b:~2..0b", [
                          Sign, abs(Offset) div 60, abs(Offset) rem 60])),
                      Text = calendar:system_time_to_rfc3339(Micro, [{unit, microsecond},
                                                                     {offset, Zone}]),
                      {ok, list_to_binary(Text)}
                          =:= erlmcp_elixir_terms:iso8601(date_time(Micro, Offset))
                  end), 500).

date_time(Micro, Offset) ->
    Local = Micro div 1_000_000 + Offset * 60,
    {{Year, Month, Day}, {Hour, Minute, Second}} =
        calendar:system_time_to_universal_time(Local, second),
    #{'__struct__' => 'Elixir.DateTime', calendar => 'Elixir.Calendar.ISO', year => Year,
      month => Month, day => Day, hour => Hour, minute => Minute, second => Second,
      microsecond => {Micro rem 1_000_000, 6}, time_zone => ~"Some/Where", zone_abbr => ~"SW",
      utc_offset => Offset * 60, std_offset => 0}.

%% Before, its members went to the client, `__struct__` with them.
structs_are_refused_by_their_names(_) ->
    User = #{'__struct__' => 'Elixir.Shop.User', name => ~"Ada", password_hash => ~"..."},
    Julian = #{'__struct__' => 'Elixir.Date', calendar => 'Elixir.Calendar.Julian',
               year => 1, month => 1, day => 1},
    Date = Julian#{calendar := 'Elixir.Calendar.ISO'},
    Time = #{'__struct__' => 'Elixir.Time', calendar => 'Elixir.Calendar.ISO',
             hour => 9, minute => 5, second => 7, microsecond => {40_000, 3}},
    At = (maps:merge(Time, Date))#{'__struct__' := 'Elixir.DateTime', time_zone => ~"Etc/UTC",
                                   utc_offset => 0, std_offset => 0},
    Partial = [{~"no_day", maps:remove(day, Date)}, {~"no_number", Date#{month := nil}},
               {~"no_second", maps:remove(second, Time)}, {~"no_fraction", Time#{microsecond := 4}},
               {~"too_precise", Time#{microsecond := {40_000, 7}}},
               {~"no_time", At#{hour := nil}}, {~"no_offset", maps:remove(utc_offset, At)}],
    Logs = #{name => ~"logs", handler => fun(_, Context) ->
        ok = erlmcp:log(Context, error, User),
        ~""
    end},
    Server = start(#{tools => [tool(~"user", User), tool(~"inside", #{list => [#{user => User}]}),
                               tool(~"structured", {structured, [User]}),
                               tool(~"content", [(erlmcp_content:text(~"a"))#{'_meta' => User}]),
                               tool(~"julian", #{on => Julian}), Logs]
                              ++ [tool(Name, #{on => Struct}) || {Name, Struct} <- Partial],
                     resources => [resource(~"a:user", User)]}),
    Expected = ~"a map with the members that clients may see",
    [{Params, {unsupported_struct, Name, Expected}} = {Params, reason(Server, Method, Params)}
     || {Method, Params, Name} <-
            [{~"tools/call", #{name => Tool}, ~"Shop.User"}
             || Tool <- [~"user", ~"inside", ~"structured", ~"content", ~"logs"]]
            ++ [{~"tools/call", #{name => Name}, erlmcp_elixir_terms:name(Module)}
                || {Name, #{'__struct__' := Module}} <- Partial]
            ++ [{~"tools/call", #{name => ~"julian"}, ~"Date"},
                {~"resources/read", #{uri => ~"a:user"}, ~"Shop.User"}]],
    stop(Server).

structs_in_definitions_are_refused(_) ->
    Range = #{'__struct__' => 'Elixir.Range', first => 1, last => 2, step => 1},
    {error, {bad_definition, tool, ~"a", meta,
             ~"a map with the members that clients may see; the struct Range is none"}} =
        erlmcp:start_server(#{name => ~"a", version => ~"1",
                              tools => [tool(~"a", ~"", #{meta => #{range => Range}})]}),
    {error, {bad_definition, tool, ~"a", input_schema, Told}} =
        erlmcp:start_server(#{name => ~"a", version => ~"1", tools => [
            tool(~"a", ~"", #{input_schema => #{n => {integer, #{default => Range}}}})]}),
    {_, _} = binary:match(Told, ~"/n/default is neither a shorthand nor JSON"),
    {_, _} = binary:match(Told, ~"Elixir.Range").

%% What a handler does with its context, in a test of its own or in the wrong place.
wrong_arguments_of_a_handler_are_told(_) ->
    Test = self(),
    Server = start(#{tools => [#{name => ~"context", handler => fun(_, Context) ->
        Test ! {context, Context},
        ~""
    end}]}),
    _ = result(Server, ~"tools/call", #{name => ~"context"}),
    Context = receive {context, Given} -> Given end,
    OfHandler = ~"the map that a handler is given as its second argument",
    Levels = ~"debug, info, notice, warning, error, critical, alert or emergency",
    [{Function, Arguments, {bad_argument, Name, Expected}} =
         {Function, Arguments, raised(Function, Arguments)}
     || {Function, Arguments, Name, Expected} <-
            [{Function, [No | More], context, OfHandler}
             || No <- [#{}, undefined, [], #{progress_token => 1}],
                {Function, More} <- [{progress, [1, #{}]}, {log, [info, ~"a"]},
                                     {log, [info, ~"a", #{}]}, {elicitation_complete, [~"1"]},
                                     {client_has, [~"a/b"]}, {close_connection, []}]]
            ++ [{progress, [Context, ~"1", #{}], progress, ~"a number"},
                {progress, [Context, 1, []], details, ~"a map"},
                {log, [Context, loud, ~"a"], level, Levels},
                {log, [Context, ~"info", ~"a"], level, Levels},
                {log, [Context, info, ~"a", []], details, ~"a map"},
                {elicitation_complete, [Context, 1], id, ~"a binary"}]],
    ok = erlmcp:progress(Context, 1, #{}),
    stop(Server).

raised(Function, Arguments) ->
    try
        apply(erlmcp, Function, Arguments)
    catch
        error:Reason:Stack ->
            [{erlmcp, Called, _, _} | _] = Stack,
            true = Called =:= Function,
            Reason
    end.

%% Definitions that return what is given.

gives(Return) -> fun(_, _) -> Return end.

tool(Name, Return) -> tool(Name, Return, #{}).

tool(Name, Return, More) -> More#{name => Name, handler => gives(Return)}.

resource(Uri, Return) -> resource(Uri, Return, #{}).

resource(Uri, Return, More) -> More#{uri => Uri, name => Uri, handler => gives(Return)}.

result(Server, Method, Params) ->
    #{status := 200, messages := [#{~"result" := Result}]} = call(Server, Method, Params),
    Result.

read(Server, Uri) -> result(Server, ~"resources/read", #{uri => Uri}).

code(#{messages := [#{~"error" := #{~"code" := Code}}]}) -> Code.

%% Why a call failed, as its developer reads it in the log.
reason(Server, Method, Params) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Options = #{meta => #{~"io.modelcontextprotocol/logLevel" => ~"debug"}},
    #{messages := [#{~"error" := #{~"code" := -32603, ~"message" := ~"internal error",
                                   ~"data" := #{~"incident" := Incident}}}]} =
        erlmcp_test_http:call(Server, Method, Params, Options),
    %% The case's time is the bound.
    Reason = receive {logged, #{incident := Incident, reason := Known}} -> Known end,
    ok = logger:remove_handler(?MODULE),
    Reason.

-doc false.
log(#{msg := {report, Report}}, #{config := #{test := Test}}) ->
    Test ! {logged, Report},
    ok;
log(_, _) ->
    ok.
