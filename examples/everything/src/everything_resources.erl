-module(everything_resources).
-moduledoc "The resources of the everything server, and its one template.".

-export([definitions/0, templates/0, read/2]).

-doc "Returns the resources with a fixed URI.".
-spec definitions() -> [map()].
definitions() ->
    [#{uri => ~"test://static-text",
       name => ~"static-text",
       title => ~"Static text",
       description => ~"A text that never changes",
       mime_type => ~"text/plain"},
     #{uri => ~"test://static-binary",
       name => ~"static-binary",
       title => ~"Static image",
       description => ~"A PNG image of one pixel",
       mime_type => ~"image/png"},
     #{uri => ~"test://watched-resource",
       name => ~"watched-resource",
       title => ~"Watched text",
       description => ~"A text whose watchers are told when the tool touch_watched is called",
       mime_type => ~"text/plain"}].

-doc "Returns the resources whose URI has variables.".
-spec templates() -> [map()].
templates() ->
    [#{uri_template => ~"test://template/{id}/data",
       name => ~"template-data",
       title => ~"Data by id",
       description => ~"JSON that names the id of its URI",
       mime_type => ~"application/json"}].

-doc "Returns the contents of a resource.".
-spec read(Uri :: binary(), Variables :: map()) -> binary() | {blob, binary()}.
read(~"test://static-text", _) ->
    ~"This is the content of the static text resource.";
read(~"test://watched-resource", _) ->
    ~"This text can be watched.";
read(~"test://static-binary", _) ->
    {blob, everything_media:png()};
read(<<"test://template/", _/binary>>, #{~"id" := Id}) ->
    iolist_to_binary(json:encode(#{id => Id, templateTest => true,
                                   data => <<"Data for ID: ", Id/binary>>})).
