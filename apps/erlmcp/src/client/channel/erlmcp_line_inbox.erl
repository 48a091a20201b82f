-module(erlmcp_line_inbox).
-moduledoc """
Decodes the received lines of a line channel, or the events of a stream of HTTP+SSE, and passes each
message on. A response goes to the exchange with its id, and a notification to the exchange of its
`progressToken` or subscription. Requests, and notifications of no exchange, go to the channel's
owner. A value of the process that reads the messages.

An exchange gets `{Ref, {message, Message}, Bytes}`, in which `Bytes` is the size of the line, or
`{Ref, {failed, Reason}}`. A response that cannot be decoded, such as one over the limits, fails its
exchange if its id is at the beginning or the end of the line. Other lines that are not messages,
and responses of no exchange, are logged and skipped. If a receiver has too many unread messages,
notifications for it are dropped, and requests are refused.

Internal.
""".

-export([new/3, push/3, take/3]).

-export_type([inbox/0]).

%% The number of messages in a mailbox, and their bytes, above which the process gets no
%% notifications. The mailbox is checked after every LOOK notifications, and for each one of LARGE
%% bytes or more.
-define(MAILBOX, 1000).
-define(BYTES, 8_388_608).
-define(LOOK, 32).
-define(LARGE, 16_384).
%% The most bytes of an invalid line that are logged.
-define(SHOWN, 200).
%% A response, as servers write it: with its id before its outcome, or at its end.
-define(RESPONSE, [~B'^(?|\{"jsonrpc": ?"2\.0", ?"id": ?([0-9]{1,15}), ?"(?:result|error)":|',
                   ~B'\{"id": ?([0-9]{1,15}), ?"jsonrpc": ?"2\.0", ?"(?:result|error)":|',
                   ~B'\{"(?:result|error)":.*, ?"jsonrpc": ?"2\.0", ?"id": ?([0-9]{1,15})\}$|',
                   ~B'\{"(?:result|error)":.*, ?"id": ?([0-9]{1,15}), ?"jsonrpc": ?"2\.0"\}$)']).
%% The most characters of a decoder's reason that a call or the log gets.
-define(REASON, 200).
%% Milliseconds between two warnings of the same kind.
-define(WARNING_INTERVAL, 10_000).

-record(inbox, {
    owner :: pid(),
    %% The channel's process, which messages to the owner name.
    channel :: pid(),
    limits :: erlmcp_json:limits(),
    %% The description of the channel, for warnings.
    about :: map(),
    %% For each kind of warning, when it was last logged, and how many were left out since then.
    warnings = #{} :: #{Kind :: atom() => {Logged :: integer(), Omitted :: non_neg_integer()}},
    framing :: erlmcp_line:state(),
    %% The bytes of the line that is being handled.
    size = 0 :: non_neg_integer(),
    %% The number of notifications sent to each process since its mailbox was checked; `full` if the
    %% check failed.
    sent = #{} :: #{pid() => pos_integer() | full}
}).

-opaque inbox() :: #inbox{}.

-doc """
Returns an inbox for a new connection. Requests go to `Owner`, and so do notifications that belong
to no exchange. Their messages name the process `Channel`. Warnings in the log have the members of
`About`.
""".
-spec new({Owner :: pid(), Channel :: pid()}, erlmcp_json:limits(), About :: map()) -> inbox().
new({Owner, Channel}, #{message_bytes := Max} = Limits, About) ->
    #inbox{owner = Owner, channel = Channel, limits = Limits, about = About,
           framing = erlmcp_line:new(Max)}.

-doc """
Handles received bytes: passes messages on, and removes exchanges that got their response. Returns
the refusals of requests that the owner could not take. The caller writes these to the server. A
line over `message_bytes` gives `too_large`; the connection has to end then, since the exchange of
the line is unknown.
""".
-spec push(binary(), erlmcp_line_exchanges:exchanges(), inbox()) ->
    {[iodata()], erlmcp_line_exchanges:exchanges(), inbox()} | {too_large, Limit :: pos_integer()}.
push(Bytes, Exchanges, #inbox{framing = Framing} = Inbox) ->
    {Lines, Rest} = erlmcp_line:push(Bytes, Framing),
    %% Mailboxes are checked again for the next chunk.
    lines(Lines, [], Exchanges, Inbox#inbox{framing = Rest, sent = #{}}).

-doc """
Handles one whole message, such as the data of an event, in the way that `push/3` handles a line.
""".
-spec take(binary(), erlmcp_line_exchanges:exchanges(), inbox()) ->
    {[iodata()], erlmcp_line_exchanges:exchanges(), inbox()}.
take(Bytes, Exchanges, Inbox) ->
    line(Bytes, Exchanges, Inbox#inbox{sent = #{}}).

lines([], Replies, Exchanges, Inbox) ->
    {lists:reverse(Replies), Exchanges, Inbox};
lines([{too_large, _} | _], _, _, #inbox{limits = #{message_bytes := Limit}}) ->
    {too_large, Limit};
lines([Line | Lines], Replies, Exchanges, Inbox) ->
    {More, NextExchanges, Next} = line(Line, Exchanges, Inbox),
    lines(Lines, More ++ Replies, NextExchanges, Next).

line(Line, Exchanges, #inbox{limits = Limits} = Inbox) ->
    case erlmcp_json:decode(Line, Limits) of
        {ok, Json} ->
            message(Json, Exchanges, Inbox#inbox{size = byte_size(Line)});
        {error, Reason} ->
            not_json(Reason, Line, Exchanges, Inbox)
    end.

not_json(Reason, Line, Exchanges, Inbox) ->
    %% A reason may have a key of any length.
    Why = unicode:characters_to_binary(io_lib:format("~0tp", [Reason], [{chars_limit, ?REASON}])),
    maybe
        {match, [Id]} ?= re:run(Line, ?RESPONSE, [{capture, all_but_first, binary}]),
        {ok, Ref} ?= erlmcp_line_exchanges:by_id(binary_to_integer(Id), Exchanges),
        Failed = {Ref, {failed, {protocol, <<"expected JSON, got ", Why/binary>>}}},
        {[], finish(Ref, Failed, Exchanges), Inbox}
    else
        _ ->
            Shown = binary:copy(binary_part(Line, 0, min(?SHOWN, byte_size(Line)))),
            {[], Exchanges, warn(not_json, #{reason => Why, line => Shown}, Inbox)}
    end.

message(Json, Exchanges, Inbox) ->
    case erlmcp_message:parse(Json) of
        {batch, Items} -> batch(Items, [], Exchanges, Inbox);
        Message -> route(Message, Json, Exchanges, Inbox)
    end.

%% A server of 2025-03-26 may answer with a batch.
batch([], Replies, Exchanges, Inbox) ->
    {Replies, Exchanges, Inbox};
batch([Item | Items], Replies, Exchanges, Inbox) ->
    {More, NextExchanges, Next} = route(erlmcp_message:parse(Item), Item, Exchanges, Inbox),
    batch(Items, More ++ Replies, NextExchanges, Next).

%% A server that cannot read a message answers with an error without an id. Such an error goes to
%% the waiting request, if there is only one.
route({response, undefined, Outcome}, _, Exchanges, Inbox) ->
    case erlmcp_line_exchanges:only_request(Exchanges) of
        {ok, Ref, Id} ->
            Answer = to_exchange(Ref, {response, Id, Outcome}, Inbox),
            {[], finish(Ref, Answer, Exchanges), Inbox};
        none ->
            {[], Exchanges, warn(unknown_response, #{id => none}, Inbox)}
    end;
route({response, Id, _} = Message, _, Exchanges, Inbox) ->
    case erlmcp_line_exchanges:by_id(Id, Exchanges) of
        {ok, Ref} -> {[], finish(Ref, to_exchange(Ref, Message, Inbox), Exchanges), Inbox};
        none -> {[], Exchanges, warn(unknown_response, #{id => shown(Id)}, Inbox)}
    end;
route({notification, _, Params} = Message, _, Exchanges, #inbox{owner = Owner} = Inbox) ->
    case erlmcp_line_exchanges:by_params(Params, Exchanges) of
        {ok, Ref, Pid} ->
            {[], Exchanges, notify(Pid, Ref, to_exchange(Ref, Message, Inbox), Inbox)};
        none -> {[], Exchanges, notify(Owner, Owner, to_owner(Message, Inbox), Inbox)}
    end;
route({request, Id, _, _} = Message, _, Exchanges, #inbox{owner = Owner} = Inbox) ->
    case is_full(Owner, Inbox) of
        false ->
            Owner ! to_owner(Message, Inbox),
            {[], Exchanges, Inbox};
        true ->
            Refusal = erlmcp_refusal:new(concurrent_limit_exceeded, ~"the client is busy",
                                         #{limit => ?MAILBOX}),
            {[erlmcp_message:error(Id, Refusal)], Exchanges,
             warn(refused_requests, #{limit => ?MAILBOX}, Inbox)}
    end;
route({invalid, Id, Refusal}, Json, Exchanges, Inbox) when
    Id =/= undefined, not is_map_key(~"method", Json)
->
    case erlmcp_line_exchanges:by_id(Id, Exchanges) of
        {ok, Ref} ->
            What = erlmcp_refusal:message(Refusal),
            {[], finish(Ref, {Ref, {failed, {protocol, What}}}, Exchanges), Inbox};
        none ->
            {[], Exchanges, not_a_message(Refusal, Inbox)}
    end;
route({invalid, _, Refusal}, _, Exchanges, Inbox) ->
    {[], Exchanges, not_a_message(Refusal, Inbox)};
route({batch, _}, _, Exchanges, Inbox) ->
    {[], Exchanges, warn(not_a_message, #{reason => ~"a batch in a batch"}, Inbox)}.

finish(Ref, Last, Exchanges) ->
    {_, Rest} = erlmcp_line_exchanges:remove(Ref, Exchanges),
    Ref ! Last,
    Rest.

to_exchange(Ref, Message, #inbox{size = Size}) ->
    {Ref, {message, Message}, Size}.

to_owner(Message, #inbox{channel = Channel}) ->
    {erlmcp_channel, Channel, {message, Message}}.

%% The message is copied, since it would keep the whole chunk in memory while it waits.
notify(Pid, To, Message, #inbox{sent = Sent, size = Size} = Inbox) ->
    case Sent of
        #{Pid := full} ->
            warn(dropped_notifications, #{limit => ?MAILBOX}, Inbox);
        #{Pid := Count} when Count < ?LOOK, Size < ?LARGE ->
            To ! erlmcp_client_mailbox:own(Message),
            Inbox#inbox{sent = Sent#{Pid := Count + 1}};
        #{} ->
            case is_full(Pid, Inbox) of
                true ->
                    notify(Pid, To, Message, Inbox#inbox{sent = Sent#{Pid => full}});
                false ->
                    To ! erlmcp_client_mailbox:own(Message),
                    Inbox#inbox{sent = Sent#{Pid => 1}}
            end
    end.

is_full(Pid, #inbox{size = Size}) ->
    case process_info(Pid, message_queue_len) of
        {message_queue_len, Length} -> Length > ?MAILBOX orelse Length * Size > ?BYTES;
        undefined -> false
    end.

not_a_message(Refusal, Inbox) ->
    warn(not_a_message, #{reason => erlmcp_refusal:message(Refusal)}, Inbox).

shown(Id) when is_binary(Id), byte_size(Id) > ?SHOWN -> binary:copy(binary_part(Id, 0, ?SHOWN));
shown(Id) -> Id.

%% Logs a warning at most once in an interval, with the number of warnings of its kind that were
%% left out before.
warn(Kind, Details, #inbox{about = About, warnings = Warnings} = Inbox) ->
    Now = erlmcp_clock:now_ms(),
    case Warnings of
        #{Kind := {Logged, Omitted}} when Now - Logged < ?WARNING_INTERVAL ->
            Inbox#inbox{warnings = Warnings#{Kind := {Logged, Omitted + 1}}};
        #{} ->
            {_, Omitted} = maps:get(Kind, Warnings, {none, 0}),
            ok = erlmcp_log:report(warning, maps:merge(Details, About#{what => Kind,
                                                                       omitted => Omitted})),
            Inbox#inbox{warnings = Warnings#{Kind => {Now, 0}}}
    end.
