-module(everything_prompts).
-moduledoc "The prompts of the everything server.".

-export([definitions/0, get/2]).

-doc "Returns the prompts in the order in which clients see them.".
-spec definitions() -> [map()].
definitions() ->
    [#{name => ~"test_simple_prompt",
       description => ~"A prompt without arguments"},
     #{name => ~"test_prompt_with_arguments",
       description => ~"A prompt that repeats its two arguments",
       arguments => [required(~"arg1", ~"The first"), required(~"arg2", ~"The second")],
       complete => #{~"arg1" => [~"test", ~"testing", ~"toast"]}},
     #{name => ~"test_prompt_with_embedded_resource",
       description => ~"A prompt that carries a resource",
       arguments => [required(~"resourceUri", ~"The URI that the resource gets")]},
     #{name => ~"test_input_required_result_prompt",
       description => ~"A prompt that asks for its context first"},
     #{name => ~"test_prompt_with_image",
       description => ~"A prompt that carries an image"}].

required(Name, Description) ->
    #{name => Name, description => Description, required => true}.

-doc "Returns the messages of a prompt.".
-spec get(Name :: binary(), Arguments :: map()) -> term().
get(~"test_simple_prompt", _) ->
    ~"This is a simple prompt for testing.";
get(~"test_prompt_with_arguments", #{~"arg1" := First, ~"arg2" := Second}) ->
    <<"Prompt with arguments: arg1='", First/binary, "', arg2='", Second/binary, "'">>;
get(~"test_prompt_with_embedded_resource", #{~"resourceUri" := Uri}) ->
    [user(erlmcp_content:embedded(Uri, ~"text/plain",
                                  ~"Embedded resource content for testing.")),
     user(erlmcp_content:text(~"Please process the embedded resource above."))];
get(~"test_prompt_with_image", _) ->
    [user(erlmcp_content:image(everything_media:png(), ~"image/png")),
     user(erlmcp_content:text(~"Please analyze the image above."))].

user(Content) ->
    #{role => user, content => Content}.
