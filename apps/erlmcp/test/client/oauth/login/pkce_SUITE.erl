-module(pkce_SUITE).
-moduledoc "Proof Key for Code Exchange (RFC 7636).".

-export([suite/0, all/0]).
-export([the_example_of_appendix_b/1, a_verifier_is_new_and_has_its_challenge/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

the_example_of_appendix_b(_) ->
    ~"E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM" =
        erlmcp_pkce:challenge(~"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk").

%% Section 4.1: 43 to 128 characters, letters, digits and "-._~".
a_verifier_is_new_and_has_its_challenge(_) ->
    #{verifier := Verifier, challenge := Challenge} = erlmcp_pkce:new(),
    match = re:run(Verifier, ~"^[A-Za-z0-9._~-]{43,128}$", [{capture, none}]),
    Challenge = erlmcp_pkce:challenge(Verifier),
    #{verifier := Other} = erlmcp_pkce:new(),
    true = Other =/= Verifier.
