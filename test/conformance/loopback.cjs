// Preloaded into the conformance suite where it plays the servers: they would listen on every
// address of the machine, and are to listen on the loopback one alone.
//
// A host that listen() is given is looked up first, and the suite wants its port at once. This is
// the function below that, which gets an address or none.

'use strict';

const { Server } = require('node:net');

const LOOPBACK = '127.0.0.1';
const EVERYWHERE = [undefined, null, '', '::', '0.0.0.0'];

const bind = Server.prototype._listen2;
if (typeof bind !== 'function') throw new Error('loopback.cjs does not know this Node');

Server.prototype._listen2 = function (address, port, family, backlog, fd, flags) {
    // Pipes have no port; what comes with a descriptor is bound already.
    const here = port >= 0 && !(fd >= 0) && EVERYWHERE.includes(address);
    return here
        ? bind.call(this, LOOPBACK, port, 4, backlog, fd, flags)
        : bind.call(this, address, port, family, backlog, fd, flags);
};
