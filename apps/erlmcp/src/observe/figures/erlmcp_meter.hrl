%% The words of a row and of a failure in the counters of a meter (m:erlmcp_meter_counts).
-define(ROW_WORDS, 115).
-define(FAILURE_WORDS, 16).
%% Each method of MCP has an index, and so have the three kinds of requests without one.
-define(METHOD_COUNT, 26).
-define(OTHER_METHOD, 0).
-define(UNREAD_METHOD, 1).
-define(TASK_METHOD, 2).
%% The index of all JSON-RPC codes without an index of their own, and the last one of 7 bits.
-define(OTHER_CODE, 127).
