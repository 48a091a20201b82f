-module(everything_schema).
-moduledoc "An input schema with many JSON Schema 2020-12 keywords, which clients get unchanged.".

-export([input/0]).

-doc "Returns the schema.".
-spec input() -> map().
input() ->
    Text = #{type => string},
    #{'$schema' => ~"https://json-schema.org/draft/2020-12/schema",
      type => object,
      '$defs' => #{address => #{'$anchor' => addressDef, type => object,
                                properties => #{street => Text, city => Text}}},
      properties => #{name => Text,
                      address => #{'$ref' => ~"#/$defs/address"},
                      contactMethod => Text#{enum => [phone, email]},
                      phone => Text,
                      email => Text},
      allOf => [#{anyOf => [#{required => [phone]}, #{required => [email]}]}],
      'if' => #{properties => #{contactMethod => #{const => phone}}, required => [contactMethod]},
      then => #{required => [phone]},
      'else' => #{required => [email]},
      additionalProperties => false}.
