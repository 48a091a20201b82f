-module(erlmcp_line_inbox).
-moduledoc """
What a server writes on a line channel, and whom it is for. A value of the channel's process.

A line is decoded within the limits. A response goes to the exchange with its id; a notification to
the exchange that its `progressToken` or its subscription's id names; everything else to the
channel's owner. An error response without an id, which is how a server answers what it could not
read, is that of the only request that waits, if there is one only. A line that is no message is
logged and skipped: programs print where they should not, and what they print answers nobody. An
invalid response with an id that waits ends its exchange as `protocol`.

Whoever is sent notifications faster than it takes them does not get all: while more than 1000
messages are in its mailbox, or as many of its size would have 8 MiB, they are left out, and
requests of the server's to the owner are answered with an error.
""".

-export([new/3, push/3, take/3]).

-export_type([inbox/0]).

%% Messages in a process's mailbox from which on it is sent no more notifications, and bytes of as
%% many; how many it is sent between two looks, and from how many bytes on one is large, for which
%% there is a look at once.
-define(MAILBOX, 1000).
-define(BYTES, 8_388_608).
-define(LOOK, 32).
-define(LARGE, 16_384).
%% Bytes of a wrong line that are logged.
-define(SHOWN, 200).
%% Milliseconds between two warnings of a kind.
-define(WARNING_INTERVAL, 10_000).

-record(inbox, {
    owner :: pid(),
    %% Who it is that the owner hears of.
    channel :: pid(),
    limits :: erlmcp_json:limits(),
    %% What every warning says of the channel.
    about :: map(),
    %% Of each kind of warning, when it was last logged, and how many were left out since then.
    warnings = #{} :: #{Kind :: atom() => {Logged :: integer(), Omitted :: non_neg_integer()}},
    framing :: erlmcp_line:state(),
    %% Bytes of the line that is read.
    size = 0 :: non_neg_integer(),
    %% Of a process that is sent notifications: how many since the last look, or that it is full.
    sent = #{} :: #{pid() => pos_integer() | full}
}).

-opaque inbox() :: #inbox{}.

-doc "An inbox at the beginning of a connection. What goes to the owner is sent it at once.".
-spec new({Owner :: pid(), Channel :: pid()}, erlmcp_json:limits(), About :: map()) -> inbox().
new({Owner, Channel}, #{message_bytes := Max} = Limits, About) ->
    #inbox{owner = Owner, channel = Channel, limits = Limits, about = About,
           framing = erlmcp_line:new(Max)}.

-doc """
What arrived. Exchanges are told what is theirs, and those that got their response are over. Gives
the answers that are to be written. A line over `message_bytes` is `too_large`: whose it is cannot
be known, so the connection is of no use to anyone after it.
""".
-spec push(binary(), erlmcp_line_exchanges:exchanges(), inbox()) ->
    {[iodata()], erlmcp_line_exchanges:exchanges(), inbox()} | {too_large, Limit :: pos_integer()}.
push(Bytes, Exchanges, #inbox{framing = Framing} = Inbox) ->
    {Lines, Rest} = erlmcp_line:push(Bytes, Framing),
    %% A look at the mailboxes is good for one chunk.
    lines(Lines, [], Exchanges, Inbox#inbox{framing = Rest, sent = #{}}).

-doc "The same of one message that is known to be whole, such as an event's data.".
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
            Shown = binary:copy(binary_part(Line, 0, min(?SHOWN, byte_size(Line)))),
            {[], Exchanges, warn(not_json, #{reason => Reason, line => Shown}, Inbox)}
    end.

message(Json, Exchanges, Inbox) ->
    case erlmcp_message:parse(Json) of
        {batch, Items} -> batch(Items, [], Exchanges, Inbox);
        Message -> route(Message, Json, Exchanges, Inbox)
    end.

%% A server of 2025-03-26 may answer so.
batch([], Replies, Exchanges, Inbox) ->
    {Replies, Exchanges, Inbox};
batch([Item | Items], Replies, Exchanges, Inbox) ->
    {More, NextExchanges, Next} = route(erlmcp_message:parse(Item), Item, Exchanges, Inbox),
    batch(Items, More ++ Replies, NextExchanges, Next).

route({response, Id, _} = Message, _, Exchanges, Inbox) ->
    case erlmcp_line_exchanges:by_id(Id, Exchanges) of
        {ok, Ref} -> {[], finish(Ref, {message, Message}, Exchanges), Inbox};
        none -> {[], Exchanges, warn(unknown_response, #{id => shown(Id)}, Inbox)}
    end;
route({notification, _, Params} = Message, _, Exchanges, #inbox{owner = Owner} = Inbox) ->
    case erlmcp_line_exchanges:by_params(Params, Exchanges) of
        {ok, Ref, Pid} -> {[], Exchanges, notify(Pid, Ref, {Ref, {message, Message}}, Inbox)};
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
route({invalid, undefined, Refusal}, #{~"jsonrpc" := ~"2.0", ~"error" := Error} = Json, Exchanges,
      Inbox) when not is_map_key(~"method", Json) ->
    case erlmcp_line_exchanges:only_request(Exchanges) of
        {ok, Ref, Id} ->
            {[], finish(Ref, {message, {response, Id, {error, Error}}}, Exchanges), Inbox};
        none ->
            {[], Exchanges, not_a_message(Refusal, Inbox)}
    end;
route({invalid, Id, Refusal}, Json, Exchanges, Inbox) when
    Id =/= undefined, not is_map_key(~"method", Json)
->
    case erlmcp_line_exchanges:by_id(Id, Exchanges) of
        {ok, Ref} ->
            What = erlmcp_refusal:message(Refusal),
            {[], finish(Ref, {failed, {protocol, What}}, Exchanges), Inbox};
        none ->
            {[], Exchanges, not_a_message(Refusal, Inbox)}
    end;
route({invalid, _, Refusal}, _, Exchanges, Inbox) ->
    {[], Exchanges, not_a_message(Refusal, Inbox)};
route({batch, _}, _, Exchanges, Inbox) ->
    {[], Exchanges, warn(not_a_message, #{reason => ~"a batch in a batch"}, Inbox)}.

finish(Ref, Event, Exchanges) ->
    {_, Rest} = erlmcp_line_exchanges:remove(Ref, Exchanges),
    Ref ! {Ref, Event},
    Rest.

to_owner(Message, #inbox{channel = Channel}) ->
    {erlmcp_channel, Channel, {message, Message}}.

%% What waits there keeps alive what it is a part of: it is sent as its own.
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

%% Warns once in an interval, with the number of those of the kind that were left out before.
warn(Kind, Details, #inbox{about = About, warnings = Warnings} = Inbox) ->
    Now = erlang:monotonic_time(millisecond),
    case Warnings of
        #{Kind := {Logged, Omitted}} when Now - Logged < ?WARNING_INTERVAL ->
            Inbox#inbox{warnings = Warnings#{Kind := {Logged, Omitted + 1}}};
        #{} ->
            {_, Omitted} = maps:get(Kind, Warnings, {none, 0}),
            ok = erlmcp_log:report(warning, maps:merge(Details, About#{what => Kind,
                                                                       omitted => Omitted})),
            Inbox#inbox{warnings = Warnings#{Kind => {Now, 0}}}
    end.
