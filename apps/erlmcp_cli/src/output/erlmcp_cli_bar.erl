-module(erlmcp_cli_bar).
-moduledoc "Formats the progress of a call as one line of text. Pure.".

-export([line/2, plain/1]).

%% The most columns of the bar, without the text around it.
-define(CELLS, 30).

-doc """
Returns a line of fewer than `Columns` characters. The line has a bar if the total is known, and
otherwise the number of the progress (`plain/1`). `Params` are those of a progress notification.
""".
-spec line(Params :: map(), Columns :: pos_integer()) -> unicode:chardata().
line(#{~"progress" := Progress, ~"total" := Total} = Params, Columns)
  when is_number(Total), Total > 0 ->
    cut(try Progress / Total of
            Quotient -> bar(max(0, min(1, Quotient)), Params, Columns)
        catch
            %% A float cannot express the quotient.
            error:badarith -> plain(Params)
        end, Columns);
line(Params, Columns) ->
    cut(plain(Params), Columns).

bar(Part, Params, Columns) ->
    Cells = max(5, min(?CELLS, Columns div 3)),
    Full = trunc(Part * Cells),
    ["[", lists:duplicate(Full, $=), lists:duplicate(Cells - Full, $\s), "] ",
     string:pad(integer_to_list(trunc(Part * 100)), 3, leading), "% ", message(Params)].

-doc "Returns the progress as text without a bar.".
-spec plain(Params :: map()) -> unicode:chardata().
plain(#{~"progress" := Progress} = Params) ->
    [number(Progress), [["/", number(Total)] || #{~"total" := Total} <- [Params],
                                                is_number(Total)],
     " ", message(Params)].

number(Number) -> json:encode(Number).

message(#{~"message" := Message}) when is_binary(Message) -> erlmcp_cli_text:one_line(Message);
message(_) -> "".

%% The last column stays free, since some terminals begin the next line after it.
cut(Text, Columns) -> string:slice(string:trim(Text, trailing), 0, max(1, Columns - 1)).
