// An authorization server, npm's oidc-provider, whose only user agrees with everything.
//
//   node provider.mjs
//
// It prints its issuer and ends with its input. Tokens for a resource whose path is /jwt are
// signed. All others are opaque, and must be introspected. /forget/access and /forget/all act as a
// user who revokes a permission: the newest access token, or everything that came from its login.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const scopes = 'files:read files:write';
let provider;
let newest;

const server = createServer(async (request, response) => {
    const [, first, second] = request.url.split('?')[0].split('/');
    try {
        if (first === 'interaction') await agree(request, response);
        else if (first === 'forget') await forget(second, response);
        else provider.callback()(request, response);
    } catch (error) {
        console.error(error);
        response.writeHead(500).end();
    }
});

async function agree(request, response) {
    const { prompt, params, session, grantId } =
        await provider.interactionDetails(request, response);
    if (prompt.name === 'login') {
        await provider.interactionFinished(request, response, { login: { accountId: 'ada' } });
        return;
    }
    const grant = grantId
        ? await provider.Grant.find(grantId)
        : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
    const { missingOIDCScope, missingResourceScopes } = prompt.details;
    if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
    for (const [resource, missing] of Object.entries(missingResourceScopes ?? {})) {
        grant.addResourceScope(resource, missing.join(' '));
    }
    const result = { consent: { grantId: await grant.save() } };
    await provider.interactionFinished(request, response, result,
        { mergeWithLastSubmission: true });
}

async function forget(what, response) {
    if (what === 'all') {
        await provider.RefreshToken.revokeByGrantId(newest.grantId);
        await provider.AccessToken.revokeByGrantId(newest.grantId);
    }
    await newest.destroy();
    response.writeHead(204).end();
}

server.listen(0, '127.0.0.1', () => {
    const issuer = `http://127.0.0.1:${server.address().port}`;
    provider = new Provider(issuer, {
        clients: [{
            client_id: 'files', client_secret: 'of the resource server', grant_types: [],
            response_types: [], redirect_uris: [],
        }],
        claims: { openid: ['sub'] },
        features: {
            devInteractions: { enabled: false },
            dPoP: { enabled: true },
            introspection: { enabled: true, allowedPolicy: () => true },
            registration: { enabled: true },
            revocation: { enabled: true },
            resourceIndicators: {
                enabled: true,
                defaultResource: () => undefined,
                useGrantedResource: () => true,
                getResourceServerInfo: (_, resource) => ({
                    scope: scopes,
                    audience: resource,
                    accessTokenTTL: 3600,
                    accessTokenFormat: new URL(resource).pathname === '/jwt' ? 'jwt' : 'opaque',
                    jwt: { sign: { alg: 'RS256' } },
                }),
            },
        },
        findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
        interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
        issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
        pkce: { required: () => true },
        ttl: { AccessToken: 3600, Grant: 3600, IdToken: 3600, Interaction: 60, RefreshToken: 3600,
            Session: 3600 },
    });
    provider.on('access_token.saved', (token) => { newest = token; });
    provider.on('access_token.issued', (token) => { newest = token; });
    provider.on('server_error', (_, error) => console.error(error));
    provider.on('authorization.error', (_, error) => console.error(error));
    provider.on('grant.error', (_, error) => console.error(error));
    console.log(issuer);
});

process.stdin.on('end', () => process.exit(0)).resume();
