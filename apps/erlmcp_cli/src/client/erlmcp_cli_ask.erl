-module(erlmcp_cli_ask).
-moduledoc """
Shows the user the questions that a server asks during a call. The fields of a form are asked for on
the terminal; a URL is shown, and opened if the user agrees. Without a terminal both are declined.
An answer that the user has not confirmed is not sent. The user is also asked if a login leads to a
host that the rules do not allow.
""".

-export([inputs/1, allows/1]).

-doc """
Returns the client's option `inputs`: the funs that put a server's questions to the user, and the
folders of `--root` if there are any. Without a terminal the funs decline.
""".
-spec inputs(erlmcp_cli_target:parsed()) -> erlmcp_client:inputs().
inputs(Parsed) ->
    Funs = #{elicit => fun form/1, elicit_url => fun url/1},
    case Parsed of
        #{root := Folders} -> Funs#{roots => [root(Folder) || Folder <- Folders]};
        #{} -> Funs
    end.

root(Folder) ->
    Path = unicode:characters_to_binary(filename:absname(Folder)),
    #{~"uri" => iolist_to_binary([~"file://", uri_string:quote(Path, "/")]),
      ~"name" => unicode:characters_to_binary(filename:basename(Folder))}.

form(#{~"requestedSchema" := #{} = Schema} = Params) ->
    case erlmcp_cli_form:fields(Schema) of
        {ok, Fields} -> form(Fields, Params);
        {error, Why} -> wrong_form(Why)
    end;
form(#{~"requestedSchema" := Schema}) ->
    wrong_form(["requestedSchema: expected an object, got ", erlmcp_value_text:literal(Schema)]);
form(_) ->
    wrong_form("requestedSchema: expected an object").

form(Fields, Params) ->
    question(Params, fun() ->
        case fill(Fields, #{}) of
            cancel -> cancel;
            Content -> confirmed(Content)
        end
    end).

wrong_form(Why) ->
    erlmcp_cli_terminal:say(["declined, since the form of the server is wrong: ", Why]),
    decline.

fill([], Content) ->
    Content;
fill([Field | Fields], Content) ->
    maybe
        {ok, Typed} ?= erlmcp_cli_terminal:ask(below(erlmcp_cli_form:question(Field))),
        case erlmcp_cli_form:answer(Typed, Field) of
            {ok, Name, Value} ->
                fill(Fields, Content#{Name => Value});
            none ->
                fill(Fields, Content);
            {error, Why} ->
                again(Why, [Field | Fields], Content)
        end
    else
        eof -> cancel
    end.

again(Why, Fields, Content) ->
    ok = erlmcp_cli_output:note([below(Why), $\n]),
    fill(Fields, Content).

confirmed(Content) ->
    case yes(~"Send this? [Y/n] ", true) of
        true -> {accept, Content};
        false -> decline;
        eof -> cancel
    end.

url(#{~"url" := Url} = Params) when is_binary(Url) ->
    question(Params, fun() ->
        IsUrl = erlmcp_browser:is_url(Url),
        %% The URL is shown whole, so that the user sees whether it leads to another host.
        Shown = case IsUrl of
            true -> ["    ", Url];
            false -> quoted(Url)
        end,
        ok = erlmcp_cli_output:note([Shown, $\n]),
        case IsUrl andalso yes(~"Open it in the browser? [y/N] ", false) of
            true -> opened(Url);
            false -> decline;
            eof -> cancel
        end
    end);
url(_) ->
    decline.

opened(Url) ->
    case erlmcp_browser:open(Url) of
        ok ->
            accept;
        {error, _} ->
            case yes(~"There is no browser here. Have you opened it elsewhere? [y/N] ", false) of
                true -> accept;
                false -> decline;
                eof -> cancel
            end
    end.

question(Params, Fun) ->
    Message = case Params of
        #{~"message" := Text} when is_binary(Text) -> Text;
        #{} -> ~"(it does not say why)"
    end,
    case erlmcp_cli_terminal:can_ask() of
        true ->
            erlmcp_cli_terminal:converse(fun() ->
                ok = erlmcp_cli_output:note(["The server asks:\n", quoted(Message), $\n]),
                Fun()
            end);
        false ->
            erlmcp_cli_terminal:say(["declined, since there is no terminal to ask on: ",
                                     erlmcp_cli_text:one_line(Message)]),
            decline
    end.

-doc """
Asks the user whether a login may lead to a host. Returns `true` if the user allows it. Returns
`false` also without a terminal, and at the end of the input.
""".
-spec allows(erlmcp_oauth:host_question()) -> boolean().
allows(#{host := Host, url := Url, why := Why}) ->
    erlmcp_cli_terminal:can_ask() andalso erlmcp_cli_terminal:converse(fun() ->
        ok = erlmcp_cli_output:note([erlmcp_cli_text:leads_to(Host, Why), $\n,
                                     quoted(Url), $\n]),
        yes(~"Allow it? [y/N] ", false) =:= true
    end).

%% Lines that begin in the first column are the command's own. All text of a server is indented, and
%% wrapped so that the terminal continues no line in the first column.
quoted(Text) -> erlmcp_cli_text:indented(Text, {4, 4}, erlmcp_cli_terminal:columns()).

below(Text) ->
    erlmcp_cli_text:indented(unicode:characters_to_binary(Text), {2, 4},
                             erlmcp_cli_terminal:columns()).

yes(Question, Default) ->
    case erlmcp_cli_terminal:ask(Question) of
        eof -> eof;
        {ok, Typed} ->
            case string:lowercase(string:trim(Typed)) of
                ~"" -> Default;
                Yes when Yes =:= ~"y"; Yes =:= ~"yes" -> true;
                No when No =:= ~"n"; No =:= ~"no" -> false;
                _ -> yes(Question, Default)
            end
    end.
