// What each refusal means, for the person who runs the server. The codes are those of the page
// "Errors and refusals" of the documentation.

export const meanings = {
  1001: 'Too many requests wait to run or on one connection, or calls for a worker',
  1002: 'The requests that wait have too many bytes together',
  1003: 'Too many requests of one client wait',
  1004: 'The answer has more bytes than it may',
  1005: 'The request cannot run, or no worker will be free, before the deadline; or too many ' +
    'tokens wait to be checked, or too many proofs are in use',
  1011: 'The proof of possession of a token is invalid, or needs a nonce',
  1012: 'The token has expired',
  1013: 'The listener’s authenticate refused the credentials: for example a token for another ' +
    'server',
  1014: 'Host or Origin is not allowed, the request lacks scopes, or its certificate belongs ' +
    'to no principal',
  1015: 'The listener requires credentials, and the request has none',
  1016: 'The session has ended',
  1021: 'A member’s value is invalid',
  1023: 'The path is not the endpoint’s (404)',
  1024: 'Content-Type is missing, or is not application/json',
  1025: 'A header is missing, wrong or differs from the body',
  1026: 'DELETE, or a message of HTTP+SSE, without a session',
  1027: 'The revision is not served',
  1028: 'A member is missing',
  1029: 'A member is of the wrong type',
  1046: 'No resource has this URI',
  1048: 'No tool has this name',
  1050: 'No prompt has this name',
  1052: 'The session has its stream open already',
  1055: 'Logged: a stream or connection whose client did not read was closed',
  1056: 'Too many messages to the server in a second, minute or day; or too many proofs of one key',
  1057: 'Too many messages of one client, or calls of a definition, in a second',
  1058: 'The same in a minute',
  1059: 'The same in a day',
  1060: 'Too many connections, sessions, calls, tasks, subscriptions or used states at once',
  1066: 'The specification does not allow the request',
  1068: 'The message has more bytes than it may',
  1069: 'The call, its input or the message did not end in time',
  1070: 'Content-Encoding',
  1076: 'A request before initialize',
  1077: 'The server is about to stop',
  1078: 'A part of the server is restarting, or the processors have no time for more',
  1079: 'The handler failed',
  1080: 'A dependency of the call is not there, or the client did not answer its question; or ' +
    'the authorization server cannot check a token',
  1086: 'A dependency of the call has failed recently',
  1089: 'The call was killed, for example for passing its memory limit; or too many clients ' +
    'are counted; or messages that do not end fill their limit',
};
