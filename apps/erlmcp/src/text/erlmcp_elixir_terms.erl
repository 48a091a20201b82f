-module(erlmcp_elixir_terms).
-moduledoc """
Converts Elixir's dates and times to ISO 8601 strings, for JSON. Pure. Elixir itself is not needed,
since its structs are maps with the key `'__struct__'`.

Internal.
""".

-export([iso8601/1, name/1]).

-doc """
Returns the text of a `Date`, `Time`, `NaiveDateTime` or `DateTime` of the ISO calendar, as their
`to_iso8601/1` does; `error` for every other struct. The struct must have all fields of its module.

## Examples

```erlang
1> erlmcp_elixir_terms:iso8601(#{'__struct__' => 'Elixir.Date', calendar => 'Elixir.Calendar.ISO',
                         year => 2026, month => 7, day => 28}).
{ok, ~"2026-07-28"}
```
""".
-spec iso8601(Struct :: #{'__struct__' := atom(), atom() => term()}) -> {ok, binary()} | error.
iso8601(#{'__struct__' := Module, calendar := 'Elixir.Calendar.ISO'} = Struct) ->
    case Module of
        'Elixir.Date' -> {ok, iolist_to_binary(date(Struct))};
        'Elixir.Time' -> {ok, iolist_to_binary(time(Struct))};
        'Elixir.NaiveDateTime' -> {ok, iolist_to_binary([date(Struct), $T, time(Struct)])};
        'Elixir.DateTime' ->
            {ok, iolist_to_binary([date(Struct), $T, time(Struct), offset(Struct)])};
        _ -> error
    end;
iso8601(_) ->
    error.

date(#{year := Year, month := Month, day := Day}) ->
    Sign = [$- || Year < 0],
    [Sign, digits(4, abs(Year)), $-, digits(2, Month), $-, digits(2, Day)].

time(#{hour := Hour, minute := Minute, second := Second, microsecond := {Micro, Precision}}) ->
    Fraction = [[$., binary:part(digits(6, Micro), 0, Precision)] || Precision > 0],
    [digits(2, Hour), $:, digits(2, Minute), $:, digits(2, Second), Fraction].

offset(#{time_zone := ~"Etc/UTC", utc_offset := 0, std_offset := 0}) ->
    $Z;
offset(#{utc_offset := Utc, std_offset := Summer}) ->
    Seconds = Utc + Summer,
    Sign = if Seconds < 0 -> $-; true -> $+ end,
    [Sign, digits(2, abs(Seconds) div 3600), $:, digits(2, abs(Seconds) rem 3600 div 60)].

digits(Width, Number) ->
    Text = integer_to_binary(Number),
    <<(binary:copy(~"0", max(0, Width - byte_size(Text))))/binary, Text/binary>>.

-doc "Returns the name of a module as Elixir writes it, without the prefix `Elixir.`.".
-spec name(module()) -> binary().
name(Module) ->
    Text = atom_to_binary(Module),
    case Text of
        <<"Elixir.", Name/binary>> -> Name;
        _ -> Text
    end.
