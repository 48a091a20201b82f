%% `true` if the node exceeds no guard's bound (`m:erlmcp_overload_guard`). A macro, since every
%% request reads it.
-define(NODE_IS_CLEAR, persistent_term:get(erlmcp_overload_guard, true)).
