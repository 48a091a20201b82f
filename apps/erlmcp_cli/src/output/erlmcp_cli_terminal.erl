-module(erlmcp_cli_terminal).
-moduledoc """
The process that owns the terminal: it reads stdin and writes stderr, so that progress, messages and
questions do not get mixed up.

The launcher finds out which descriptors are terminals, and how wide that of stderr is. The launcher
sets `terminals` and `columns` in the application's environment.
""".

-behaviour(gen_server).

-include_lib("kernel/include/file.hrl").

-export([start_link/0, is_terminal/1, can_ask/0, columns/0]).
-export([say/1, progress/1, clear/0, converse/1, ask/1, read_all/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-record(state, {
    stdin = closed :: closed | port() | eof,
    unread = ~"" :: binary(),
    %% The caller that waits for a line, or for the whole input.
    reader = none :: none | {line | {all, pos_integer()}, gen_server:from()},
    %% The process that asks questions, the processes that wait to ask, and the lines to write
    %% afterwards.
    holder = none :: none | {pid(), reference()},
    queue = [] :: [gen_server:from()],
    delayed = [] :: [unicode:chardata()],
    %% `true` if a bar stands in the last line, and the time when it was drawn.
    bar = false :: boolean(),
    drawn = 0 :: integer()
}).

%% Milliseconds between two drawings of the bar; the most progress messages that may wait; the most
%% lines that may wait for the end of questions; the most bytes that may be typed ahead.
-define(REDRAW, 50).
-define(WAITING, 200).
-define(DELAYED, 100).
-define(AHEAD, 65536).

-doc false.
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "Returns `true` if a descriptor of the command is a terminal.".
-spec is_terminal(0 | 1 | 2) -> boolean().
is_terminal(Descriptor) ->
    lists:member(Descriptor, application:get_env(erlmcp_cli, terminals, [])).

-doc "Returns `true` if stdin and stderr are terminals, so that a person can be asked.".
-spec can_ask() -> boolean().
can_ask() ->
    is_terminal(0) andalso is_terminal(2).

-doc "Returns the number of characters in a line of stderr; 80 if it is not known.".
-spec columns() -> pos_integer().
columns() ->
    application:get_env(erlmcp_cli, columns, 80).

-doc """
Writes a line on stderr. Of the lines that come while questions are being asked, the last 100 are
shown after the questions.
""".
-spec say(unicode:chardata()) -> ok.
say(Text) ->
    gen_server:call(?MODULE, {say, [string:trim(Text, trailing), $\n]}, infinity).

-doc """
Shows the progress of a progress notification's `Params` in one line (`erlmcp_cli_bar:line/2`).
Progress that comes faster than it can be shown, or while questions are being asked, is left out.
""".
-spec progress(Params :: map()) -> ok.
progress(Params) ->
    case process_info(whereis(?MODULE), message_queue_len) of
        {_, Waiting} when Waiting < ?WAITING -> gen_server:cast(?MODULE, {progress, Params});
        _ -> ok
    end.

-doc "Removes the progress bar from the terminal.".
-spec clear() -> ok.
clear() ->
    gen_server:call(?MODULE, clear, infinity).

-doc """
Calls `Fun`, which asks questions, in the calling process, and returns the answer of `Fun`. Until
`Fun` returns, or until the calling process ends, other calls of this function wait. The lines of
`say/1` are kept meanwhile, and shown afterwards.
""".
-spec converse(Fun :: fun(() -> Answer)) -> Answer.
converse(Fun) ->
    ok = gen_server:call(?MODULE, hold, infinity),
    Answer = Fun(),
    ok = gen_server:call(?MODULE, release, infinity),
    Answer.

-doc """
Asks for a line. May only be called by the fun of `converse/1`. Returns the typed line, or `eof` at
the end of the input.
""".
-spec ask(Question :: unicode:chardata()) -> {ok, binary()} | eof.
ask(Question) ->
    gen_server:call(?MODULE, {ask, Question}, infinity).

-doc """
Returns all of stdin. Returns `{error, too_large}` if it has more than `Most` bytes, and
`{error, folder}` if it is a folder.
""".
-spec read_all(Most :: pos_integer()) -> {ok, binary()} | {error, too_large | folder}.
read_all(Most) ->
    %% A port for a folder never says that it cannot be read.
    case file:read_file_info("/dev/fd/0", [raw]) of
        {ok, #file_info{type = directory}} -> {error, folder};
        _ -> gen_server:call(?MODULE, {read_all, Most}, infinity)
    end.

-doc false.
init([]) ->
    {ok, #state{}}.

-doc false.
handle_call(clear, _, State) ->
    {reply, ok, cleared(State)};
handle_call({say, Line}, _, #state{holder = none} = State) ->
    Cleared = cleared(State),
    ok = write(Line),
    {reply, ok, Cleared};
handle_call({say, Line}, _, #state{delayed = Delayed} = State) ->
    {reply, ok, State#state{delayed = lists:sublist([Line | Delayed], ?DELAYED)}};
handle_call(hold, From, #state{holder = none} = State) ->
    {noreply, held(From, cleared(State))};
handle_call(hold, From, #state{queue = Queue} = State) ->
    {noreply, State#state{queue = Queue ++ [From]}};
handle_call(release, _, State) ->
    {reply, ok, released(State)};
handle_call({ask, Question}, From, State) ->
    ok = write(Question),
    {noreply, served(opened(State#state{reader = {line, From}}))};
handle_call({read_all, Most}, From, State) ->
    {noreply, served(opened(State#state{reader = {{all, Most}, From}}))}.

-doc false.
handle_cast({progress, Params}, #state{holder = none, bar = Bar, drawn = Drawn} = State) ->
    case erlmcp_clock:now_ms() of
        Now when Now - Drawn >= ?REDRAW; not Bar ->
            Line = erlmcp_cli_output:rendered(erlmcp_cli_bar:line(Params, columns()), 2),
            ok = io:put_chars(standard_error, ["\r", Line, "\e[K"]),
            {noreply, State#state{bar = true, drawn = Now}};
        _ ->
            {noreply, State}
    end;
handle_cast({progress, _}, State) ->
    {noreply, State}.

-doc false.
handle_info({Stdin, {data, Bytes}}, #state{stdin = Stdin, unread = Unread} = State) ->
    {noreply, served(State#state{unread = <<Unread/binary, Bytes/binary>>})};
handle_info({Stdin, eof}, #state{stdin = Stdin} = State) ->
    {noreply, served(State#state{stdin = eof})};
handle_info({'DOWN', Monitor, process, Pid, _}, #state{holder = {Pid, Monitor}} = State) ->
    %% The question has timed out. The cursor is still on its line.
    ok = write("\n"),
    {noreply, released(State#state{reader = none})};
handle_info(_, State) ->
    {noreply, State}.

opened(#state{stdin = closed} = State) ->
    State#state{stdin = open_port({fd, 0, 0}, [in, binary, stream, eof])};
opened(State) ->
    State.

held({Pid, _} = From, State) ->
    ok = gen_server:reply(From, ok),
    State#state{holder = {Pid, monitor(process, Pid)}}.

released(#state{holder = {_, Monitor}, queue = Queue, delayed = Delayed} = State) ->
    true = demonitor(Monitor, [flush]),
    ok = write(lists:reverse(Delayed)),
    Free = State#state{holder = none, delayed = []},
    case Queue of
        [] -> Free;
        [Next | Others] -> held(Next, Free#state{queue = Others})
    end.

served(#state{reader = {line, From}, unread = Unread, stdin = Stdin} = State) ->
    case binary:split(Unread, ~"\n") of
        [Line, Rest] ->
            ok = gen_server:reply(From, {ok, string:trim(text(Line), trailing, "\r")}),
            State#state{reader = none, unread = Rest};
        [_] when Stdin =:= eof ->
            %% The cursor is still on the line of the question.
            ok = write("\n"),
            ok = gen_server:reply(From, eof),
            State#state{reader = none};
        [_] ->
            bounded(State)
    end;
served(#state{reader = {{all, Most}, From}, unread = Unread} = State)
  when byte_size(Unread) > Most ->
    ok = gen_server:reply(From, {error, too_large}),
    State#state{reader = none, unread = ~""};
served(#state{reader = {{all, _}, From}, unread = Unread, stdin = eof} = State) ->
    ok = gen_server:reply(From, {ok, Unread}),
    State#state{reader = none, unread = ~""};
served(#state{reader = {{all, _}, _}} = State) ->
    State;
served(State) ->
    bounded(State).

%% Drops typed input over the bound: nobody types that far ahead.
bounded(#state{unread = Unread} = State) when byte_size(Unread) > ?AHEAD ->
    State#state{unread = ~""};
bounded(State) ->
    State.

text(Bytes) ->
    case unicode:characters_to_binary(Bytes) of
        Text when is_binary(Text) -> Text;
        _ -> unicode:characters_to_binary(Bytes, latin1)
    end.

cleared(#state{bar = true} = State) ->
    ok = io:put_chars(standard_error, "\r\e[K"),
    State#state{bar = false};
cleared(State) ->
    State.

write(Text) ->
    erlmcp_cli_output:note(Text).
