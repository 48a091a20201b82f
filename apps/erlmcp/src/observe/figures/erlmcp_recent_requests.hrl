%% Every request reads this: nobody looks at recent requests (m:erlmcp_recent_requests), as nearly
%% always.
-define(NOBODY_LOOKS, persistent_term:get(erlmcp_nobody_looks, true)).
