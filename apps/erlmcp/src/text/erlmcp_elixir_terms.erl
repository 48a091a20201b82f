-module(erlmcp_elixir_terms).
-moduledoc """
Converts Elixir's dates and times to ISO 8601 strings, for JSON. Pure. Elixir itself is not needed,
since its structs are maps with the key `'__struct__'`.

Internal.
""".

-export([iso8601/1, name/1]).

-doc """
Returns the text of a `Date`, `Time`, `NaiveDateTime` or `DateTime` of the ISO calendar, as their
`to_iso8601/1` does. Returns `error` for every other struct, and for one in which a field is missing
or has a wrong type.

## Examples

```erlang
1> erlmcp_elixir_terms:iso8601(#{'__struct__' => 'Elixir.Date', calendar => 'Elixir.Calendar.ISO',
                         year => 2026, month => 7, day => 28}).
{ok, ~"2026-07-28"}
```
""".
-spec iso8601(Struct :: #{'__struct__' := atom(), atom() => term()}) -> {ok, binary()} | error.
iso8601(#{'__struct__' := Module, calendar := 'Elixir.Calendar.ISO'} = Struct) ->
    try
        {ok, iolist_to_binary(text(Module, Struct))}
    catch
        throw:no_time -> error
    end;
iso8601(_) ->
    error.

text('Elixir.Date', Struct) -> date(Struct);
text('Elixir.Time', Struct) -> time(Struct);
text('Elixir.NaiveDateTime', Struct) -> [date(Struct), $T, time(Struct)];
text('Elixir.DateTime', Struct) -> [date(Struct), $T, time(Struct), offset(Struct)];
text(_, _) -> throw(no_time).

date(#{year := Year, month := Month, day := Day}) when
    is_integer(Year), is_integer(Month), is_integer(Day)
->
    Sign = [$- || Year < 0],
    [Sign, digits(4, abs(Year)), $-, digits(2, Month), $-, digits(2, Day)];
date(_) ->
    throw(no_time).

time(#{hour := Hour, minute := Minute, second := Second, microsecond := {Micro, Precision}}) when
    is_integer(Hour), is_integer(Minute), is_integer(Second), is_integer(Micro),
    is_integer(Precision), Precision >= 0, Precision =< 6
->
    Fraction = [[$., binary:part(digits(6, Micro), 0, Precision)] || Precision > 0],
    [digits(2, Hour), $:, digits(2, Minute), $:, digits(2, Second), Fraction];
time(_) ->
    throw(no_time).

offset(#{time_zone := ~"Etc/UTC", utc_offset := 0, std_offset := 0}) ->
    $Z;
offset(#{utc_offset := Utc, std_offset := Summer}) when is_integer(Utc), is_integer(Summer) ->
    Seconds = Utc + Summer,
    Sign = if Seconds < 0 -> $-; true -> $+ end,
    [Sign, digits(2, abs(Seconds) div 3600), $:, digits(2, abs(Seconds) rem 3600 div 60)];
offset(_) ->
    throw(no_time).

digits(Width, Number) ->
    Text = integer_to_binary(Number),
    <<(binary:copy(~"0", max(0, Width - byte_size(Text))))/binary, Text/binary>>.

-doc """
Returns the name of a module as a text. The name of an Elixir module is returned without its prefix
`Elixir.`.
""".
-spec name(module()) -> binary().
name(Module) ->
    Text = atom_to_binary(Module),
    case Text of
        <<"Elixir.", Name/binary>> -> Name;
        _ -> Text
    end.
