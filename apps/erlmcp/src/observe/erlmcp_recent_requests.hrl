%% Every request reads this: nobody looks at recent requests (m:erlmcp_recent_requests), as nearly
%% always.
-define(NOBODY_LOOKS, (atomics:get(persistent_term:get(erlmcp_recent_requests), 3) =:= 0)).
