%% Whether the node is over no guard's bound (`m:erlmcp_overload_guard`): one read, which every
%% request makes, and no call.
-define(NODE_IS_CLEAR, persistent_term:get(erlmcp_overload_guard, true)).
