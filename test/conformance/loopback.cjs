// Preloaded into the conformance suite when it plays the servers. They would listen on every
// address of the machine, and must listen only on loopback.
//
// A host that is given to listen() is resolved first, but the suite needs its port at once. This
// replaces the function below listen(), which gets an address or none.

'use strict';

const { Server } = require('node:net');

const LOOPBACK = '127.0.0.1';
const EVERYWHERE = [undefined, null, '', '::', '0.0.0.0'];

const bind = Server.prototype._listen2;
if (typeof bind !== 'function') throw new Error('loopback.cjs does not know this Node');

Server.prototype._listen2 = function (address, port, family, backlog, fd, flags) {
    // Pipes have no port, and a given descriptor is already bound.
    const here = port >= 0 && !(fd >= 0) && EVERYWHERE.includes(address);
    return here
        ? bind.call(this, LOOPBACK, port, 4, backlog, fd, flags)
        : bind.call(this, address, port, family, backlog, fd, flags);
};
