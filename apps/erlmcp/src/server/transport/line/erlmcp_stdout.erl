-module(erlmcp_stdout).
-moduledoc """
Keeps standard output free for MCP: what is printed by `user`, by processes that have it for their
group leader, or through the logger, goes to standard error instead.
""".

-export([redirect/0]).

-doc """
Redirects what is printed from now on. Every process whose group leader is `user`, and by
inheritance those they start, gets `standard_error`; and the name `user` belongs to a process that
passes on to it what is sent there, which is how the logger writes.
""".
-spec redirect() -> ok.
redirect() ->
    User = whereis(user),
    Error = whereis(standard_error),
    Forward = spawn(fun() -> forward(Error) end),
    true = unregister(user),
    true = register(user, Forward),
    _ = [group_leader(Error, Pid)
         || Pid <- processes(), {group_leader, Leader} <- [process_info(Pid, group_leader)],
            Leader =:= User],
    ok.

%% The reply goes from there to the one who asked; nothing comes back here.
forward(Error) ->
    receive
        Request ->
            Error ! Request,
            forward(Error)
    end.
