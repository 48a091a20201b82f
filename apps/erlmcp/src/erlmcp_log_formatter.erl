-module(erlmcp_log_formatter).
-moduledoc """
A formatter for OTP's `m:logger`: lines of JSON for machines, or text for people. It is for any
application, and shows the reports of erlmcp field by field.

```erlang
logger:update_handler_config(default, formatter, {erlmcp_log_formatter, #{format => json}}).
```

The ids of the trace and of the span are shown if the metadata have them as `trace_id` and
`span_id`. An entry cannot forge another one: a line of JSON has no line end, and each further line
of a text is indented. In a text, characters that a terminal would obey are spelled out. Long texts
are cut after 8,192 bytes, other terms after 8,192 characters, lists and maps after 100 elements,
and nested values after five levels.
""".

-export([format/2, check_config/1]).

-export_type([config/0]).

-doc "The options of the formatter: `format` is `text` by default.".
-type config() :: #{format => json | text}.

%% The most bytes of a text, the most characters of a term that is written as Erlang does, the most
%% elements of a list or a map, and the most levels.
-define(BYTES, 8_192).
-define(CHARACTERS, 8_192).
-define(ELEMENTS, 100).
-define(LEVELS, 5).

-doc false.
-spec check_config(logger:formatter_config()) -> ok | {error, term()}.
check_config(Config) ->
    case maps:to_list(Config) of
        [] -> ok;
        [{format, Format}] when Format =:= json; Format =:= text -> ok;
        [Wrong | _] -> {error, {bad_option, Wrong}}
    end.

-doc """
Formats an entry of the log as one line of JSON, or as text.

## Examples

```erlang
1> Entry = #{level => notice, msg => {report, #{what => started, url => ~"http://[::1]:1/"}},
             meta => #{time => 0, trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736"}}.
2> erlmcp_log_formatter:format(Entry, #{format => text}).
<<"1970-01-01T00:00:00.000000Z notice started url=http://[::1]:1/ "
  "trace_id=4bf92f3577b34da6a3ce929d0e0e4736\n">>
3> #{~"what" := ~"started", ~"level" := ~"notice"} =
       json:decode(erlmcp_log_formatter:format(Entry, #{format => json})).
```
""".
-spec format(logger:log_event(), config()) -> binary().
format(#{level := Level, meta := Meta} = Entry, Config) ->
    Ids = maps:with([trace_id, span_id], Meta),
    case Config of
        #{format := json} -> json(content(Entry), Ids#{level => Level, time => time(Meta)});
        #{} -> text(content(Entry), Level, time(Meta), Ids)
    end.

time(#{time := Microseconds}) ->
    list_to_binary(calendar:system_time_to_rfc3339(Microseconds, [{unit, microsecond},
                                                                  {offset, "Z"}]));
time(Meta) ->
    time(Meta#{time => os:system_time(microsecond)}).

%% A report of erlmcp, or another one of the same form, is shown by its fields. Every other entry is
%% a message.
content(#{msg := {report, #{what := What} = Report}}) when is_atom(What) ->
    {fields, Report};
content(#{msg := {string, Text}}) ->
    {message, shortened(Text)};
content(Entry) ->
    {message, logger_formatter:format(Entry, #{template => [msg], single_line => false,
                                               chars_limit => ?CHARACTERS})}.

shortened(Text) ->
    case unicode:characters_to_binary(Text) of
        <<_/binary>> = Bytes -> cut(Bytes);
        _ -> term(Text)
    end.

%% JSON

json({fields, #{what := What} = Report}, Own) ->
    line(Report, Own#{what => What});
json({message, Message}, Own) ->
    line(#{message => shortened(Message)}, Own).

%% The entry's own fields stay when a report with too many fields is cut.
line(Report, Own) ->
    Fields = maps:merge(value(Report, ?LEVELS), value(Own, ?LEVELS)),
    iolist_to_binary([json:encode(Fields), $\n]).

value(_, 0) -> ~"...";
value(Value, _) when is_number(Value); is_boolean(Value); Value =:= null -> Value;
value(Value, _) when is_atom(Value) -> atom_to_binary(Value);
value(Value, _) when is_binary(Value) -> utf8(Value);
value(Value, Levels) when is_map(Value) ->
    #{key(Key) => value(Inner, Levels - 1)
      || {Key, Inner} <- lists:sublist(maps:to_list(Value), ?ELEMENTS)};
value([_ | _] = Value, Levels) when length(Value) >= 0 ->
    case io_lib:printable_unicode_list(Value) of
        true -> cut(unicode:characters_to_binary(Value));
        false -> [value(Element, Levels - 1) || Element <- lists:sublist(Value, ?ELEMENTS)]
    end;
value([], _) -> [];
value(Value, _) -> term(Value).

key(Key) when is_atom(Key) -> atom_to_binary(Key);
key(Key) when is_binary(Key) -> utf8(Key);
key(Key) -> term(Key).

utf8(Bytes) ->
    case unicode:characters_to_binary(Bytes) of
        Bytes -> cut(Bytes);
        _ -> term(Bytes)
    end.

cut(Text) when byte_size(Text) =< ?BYTES -> Text;
cut(Text) -> <<(erlmcp_printable:beginning(Text, ?BYTES))/binary, "...">>.

term(Term) ->
    unicode:characters_to_binary(io_lib:format("~0tp", [Term], [{chars_limit, ?CHARACTERS}])).

%% Text

text(Content, Level, Time, Ids) ->
    Shown = case Content of
        {fields, #{what := What} = Report} ->
            [atom_to_binary(What) | fields(maps:without([what | maps:keys(Ids)], Report))];
        {message, Message} ->
            [shortened(Message)]
    end,
    Line = lists:join($\s, [Time, atom_to_binary(Level) | Shown] ++ fields(Ids)),
    Safe = erlmcp_printable:text(unicode:characters_to_binary(Line)),
    <<(binary:replace(string:trim(Safe, trailing), ~"\n", ~"\n    ", [global]))/binary, $\n>>.

fields(Fields) ->
    [[key(Key), $=, word(value(Value, ?LEVELS))]
     || {Key, Value} <- lists:sort(maps:to_list(Fields))].

%% A text that is not one word is shown in quotes, as in JSON.
word(Value) when is_binary(Value) ->
    case re:run(Value, ~"^[^\\s\"=\\\\[:cntrl:]]+(=[^\\s\"\\\\[:cntrl:]]*)?$",
                [unicode, ucp, {capture, none}, dollar_endonly]) of
        match -> Value;
        nomatch -> iolist_to_binary(json:encode(Value))
    end;
word(Value) ->
    iolist_to_binary(json:encode(Value)).
