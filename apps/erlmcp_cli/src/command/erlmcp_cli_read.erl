-module(erlmcp_cli_read).
-moduledoc "`erlmcp read`: prints or stores the contents of a resource.".

-export([command/1]).

-doc "Returns the `argparse` command `read`, with its arguments for the command line `Words`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "read a resource",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [#{name => uri, help => "the URI of the resource"},
              #{name => output, long => "-output", required => false,
                help => {"[--output <file>]", ["the file to write it to"]}}],
      handler => fun run/1}.

run(#{uri := Uri} = Parsed) ->
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        maybe
            {ok, Result} ?= erlmcp_client:read_resource(Client, unicode:characters_to_binary(Uri),
                                                        erlmcp_cli_client:call_options(Parsed)),
            ok = erlmcp_cli_terminal:clear(),
            #{~"contents" := Contents} = Result,
            {ok, Pieces} ?= pieces(Contents),
            shown(Pieces, Result, Parsed)
        end
    end).

pieces(Contents) -> pieces(Contents, []).

pieces([], Pieces) ->
    {ok, lists:reverse(Pieces)};
pieces([#{~"text" := Text} | Contents], Pieces) when is_binary(Text) ->
    pieces(Contents, [{text, Text} | Pieces]);
pieces([#{~"blob" := Base64} | Contents], Pieces) when is_binary(Base64) ->
    try base64:decode(Base64) of
        Bytes -> pieces(Contents, [{binary, Bytes} | Pieces])
    catch
        error:_ -> {error, {protocol, ~"contents: blob: expected base64"}}
    end;
pieces(_, _) ->
    {error, {protocol, ~"contents: expected text or blob"}}.

shown(Pieces, _, #{output := File}) ->
    case file:write_file(File, [Bytes || {_, Bytes} <- Pieces]) of
        ok ->
            ok;
        {error, Why} ->
            erlmcp_cli_output:complain([File, ": ", file:format_error(Why)]),
            failed
    end;
shown(_, Result, #{json := true}) ->
    erlmcp_cli_client:print_json(Result);
shown(Pieces, _, _) ->
    case erlmcp_cli_terminal:is_terminal(1) of
        true -> on_terminal(Pieces);
        false -> exactly([Bytes || {_, Bytes} <- Pieces])
    end.

on_terminal(Pieces) ->
    case [Bytes || {binary, Bytes} <- Pieces] of
        [] ->
            erlmcp_cli_output:print([[Text, end_of_line(Text)] || {text, Text} <- Pieces]);
        [Bytes | _] ->
            erlmcp_cli_output:complain(
                io_lib:format("~b bytes that are no text; --output FILE keeps them",
                              [byte_size(Bytes)])),
            failed
    end.

end_of_line(Text) ->
    case binary:last(<<"\n", Text/binary>>) of
        $\n -> "";
        _ -> "\n"
    end.

%% Writes the exact bytes, since another program reads stdout.
exactly(Bytes) ->
    ok = io:setopts(standard_io, [{encoding, latin1}]),
    case file:write(standard_io, Bytes) of
        ok -> io:setopts(standard_io, [{encoding, unicode}]);
        %% As `io:put_chars/1` raises it when the reader is gone.
        {error, terminated} -> error(terminated)
    end.
