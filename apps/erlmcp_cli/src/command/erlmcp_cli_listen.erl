-module(erlmcp_cli_listen).
-moduledoc "`erlmcp listen`: prints the change notifications of a server as they come.".

-export([command/1]).

-doc "Returns the `argparse` command `listen`, with its arguments for the command line `Words`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "print the changes of a server as they happen, until Ctrl-C",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [flag(tools, "-tools", "changes of the list of tools"),
              flag(prompts, "-prompts", "changes of the list of prompts"),
              flag(resources, "-resources", "changes of the list of resources"),
              #{name => resource, long => "-resource", action => append, required => false,
                help => {"[--resource <uri>]",
                         ["changes of this resource; may stand again. Without any of the four: "
                         "changes of all lists"]}}],
      handler => fun run/1}.

flag(Name, Long, Help) ->
    #{name => Name, long => Long, type => boolean, help => Help}.

run(Parsed) ->
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        maybe
            {ok, _} ?= erlmcp_client:server(Client),
            {ok, Reference} ?= erlmcp_client:subscribe(Client, filter(Parsed)),
            listen(Reference, first, Parsed)
        end
    end).

filter(Parsed) ->
    Lists = [{tools, tools_changed}, {prompts, prompts_changed}, {resources, resources_changed}],
    Uris = [unicode:characters_to_binary(Uri) || Uri <- maps:get(resource, Parsed, [])],
    case [Change || {Name, Change} <- Lists, is_map_key(Name, Parsed)] of
        [] when Uris =:= [] -> #{Change => true || {_, Change} <- Lists};
        Changes -> maps:merge(#{Change => true || Change <- Changes},
                              #{resources => Uris || Uris =/= []})
    end.

listen(Reference, Time, Parsed) ->
    receive
        {erlmcp, Reference, subscribed} ->
            ok = erlmcp_cli_terminal:say(
                case Time of
                    first -> "listening; Ctrl-C ends it";
                    again -> "the connection was lost and is back; changes may have been missed"
                end),
            listen(Reference, again, Parsed);
        {erlmcp, Reference, {ended, Reason}} ->
            case {Reason, init:get_status()} of
                %% The user has ended the command, which is its normal end.
                {stopped, {stopping, _}} -> ok;
                _ -> {error, Reason}
            end;
        {erlmcp, Reference, Event} ->
            ok = print(Event, Parsed),
            listen(Reference, Time, Parsed)
    end.

print(Event, #{json := true}) -> erlmcp_cli_client:print_json(json_of(Event));
print(Event, _) -> erlmcp_cli_output:print([text_of(Event), $\n]).

json_of({resource_updated, Uri}) -> #{event => resource_updated, uri => Uri};
json_of(Event) -> #{event => Event}.

text_of(tools_changed) -> "the list of tools changed";
text_of(prompts_changed) -> "the list of prompts changed";
text_of(resources_changed) -> "the list of resources changed";
text_of({resource_updated, Uri}) -> ["resource ", erlmcp_cli_text:one_line(Uri), " changed"].
